package main

import (
	"context"
	"encoding/binary"
	"errors"
	"log"
	"net"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// A consumer of franz-go. `position`: the offset of its last Fetch request for the partition. It sends that when the
// application has polled all records of the response before.
type franzReader struct {
	client   *kgo.Client
	asked    command
	position atomic.Int64
}

func openFranz(asked command) reader {
	reader := &franzReader{asked: asked}
	level := kgo.ReadUncommitted()
	if asked.ReadCommitted {
		level = kgo.ReadCommitted()
	}
	options := []kgo.Opt{
		kgo.FetchIsolationLevel(level),
		kgo.FetchMaxWait(100 * time.Millisecond),
		kgo.Dialer(reader.dial),
	}
	start := kgo.NewOffset().AtStart()
	if asked.Group == "" {
		partitions := map[int32]kgo.Offset{asked.Partition: start}
		options = append(options, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{asked.Topic: partitions}))
	} else {
		options = append(options,
			kgo.ConsumeTopics(asked.Topic), kgo.ConsumeResetOffset(start), kgo.ConsumerGroup(asked.Group), kgo.DisableAutoCommit())
	}
	reader.client = newClient(options...)
	return reader
}

func (reader *franzReader) poll(ctx context.Context) response {
	ctx, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
	defer cancel()
	position := reader.position.Load()
	fetches := reader.client.PollFetches(ctx)
	for _, failed := range fetches.Errors() {
		if !errors.Is(failed.Err, context.DeadlineExceeded) {
			log.Fatal(failed.Err)
		}
	}
	records := []record{}
	fetches.EachRecord(func(got *kgo.Record) {
		read := record{Offset: got.Offset, Timestamp: got.Timestamp.UnixMilli(), Value: string(got.Value)}
		for _, header := range got.Headers {
			read.Headers = append(read.Headers, [2]string{header.Key, string(header.Value)})
		}
		records = append(records, read)
	})
	return response{Records: records, Position: &position}
}

func (reader *franzReader) seek(offset int64) {
	reader.position.Store(offset)
	partitions := map[int32]kgo.EpochOffset{reader.asked.Partition: {Epoch: -1, Offset: offset}}
	reader.client.SetOffsets(map[string]map[int32]kgo.EpochOffset{reader.asked.Topic: partitions})
}

func (reader *franzReader) close(ctx context.Context) {
	if reader.asked.Group != "" {
		check(reader.client.CommitUncommittedOffsets(ctx))
	}
	reader.client.Close()
}

func (reader *franzReader) dial(ctx context.Context, network, host string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, host)
	return &watchedConn{conn, reader}, err
}

// A connection that notes the offsets of the Fetch requests which are written to it, one request in each call.
type watchedConn struct {
	net.Conn
	reader *franzReader
}

func (conn *watchedConn) Write(frame []byte) (int, error) {
	if len(frame) > 14 && binary.BigEndian.Uint16(frame[4:]) == 1 {
		request := kmsg.NewPtrFetchRequest()
		request.Version = int16(binary.BigEndian.Uint16(frame[6:]))
		body := frame[14+binary.BigEndian.Uint16(frame[12:]):] // after the client id
		if request.IsFlexible() {
			body = body[1:] // no tagged fields
		}
		check(request.ReadFrom(body))
		for _, topic := range request.Topics {
			for _, partition := range topic.Partitions {
				if partition.Partition == conn.reader.asked.Partition {
					conn.reader.position.Store(partition.FetchOffset)
				}
			}
		}
	}
	return conn.Conn.Write(frame)
}
