package main

import (
	"context"
	"errors"
	"time"

	"github.com/segmentio/kafka-go"
)

// A Reader of kafka-go, which can seek only without a group: then it reads on without one.
type kafkaGoReader struct {
	reader *kafka.Reader
	config kafka.ReaderConfig
	last   map[int]kafka.Message // by partition
}

func openKafkaGo(asked command) reader {
	config := kafka.ReaderConfig{
		Brokers:  []string{bootstrap},
		Topic:    asked.Topic,
		MaxWait:  150 * time.Millisecond,
		MinBytes: 1,
		MaxBytes: 1 << 20,
		// A broker that is being restarted is not an error for the application.
		MaxAttempts: 1000,
	}
	if asked.ReadCommitted {
		config.IsolationLevel = kafka.ReadCommitted
	}
	if asked.Group == "" {
		config.Partition = int(asked.Partition)
	} else {
		config.GroupID = asked.Group
		config.StartOffset = kafka.FirstOffset
		config.WatchPartitionChanges = true
		config.PartitionWatchInterval = 500 * time.Millisecond
	}
	return &kafkaGoReader{kafka.NewReader(config), config, map[int]kafka.Message{}}
}

func (reader *kafkaGoReader) poll(ctx context.Context) response {
	records := []record{}
	wait := 500 * time.Millisecond
	for {
		limited, cancel := context.WithTimeout(ctx, wait)
		got, err := reader.reader.FetchMessage(limited)
		cancel()
		if errors.Is(err, context.DeadlineExceeded) {
			return response{Records: records}
		}
		check(err)
		reader.last[got.Partition] = got
		read := record{Offset: got.Offset, Timestamp: got.Time.UnixMilli(), Value: string(got.Value)}
		for _, header := range got.Headers {
			read.Headers = append(read.Headers, [2]string{header.Key, string(header.Value)})
		}
		records = append(records, read)
		wait = 50 * time.Millisecond
	}
}

func (reader *kafkaGoReader) seek(offset int64) {
	if reader.config.GroupID != "" {
		check(reader.reader.Close())
		reader.config.GroupID = ""
		reader.config.StartOffset = 0
		reader.config.WatchPartitionChanges = false
		reader.reader = kafka.NewReader(reader.config)
	}
	check(reader.reader.SetOffset(offset))
}

func (reader *kafkaGoReader) close(ctx context.Context) {
	if reader.config.GroupID != "" {
		for _, message := range reader.last {
			check(reader.reader.CommitMessages(ctx, message))
		}
	}
	check(reader.reader.Close())
}
