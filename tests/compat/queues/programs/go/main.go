// Produces and consumes, as lines of JSON on standard input tell it. Usage: main franz-go|kafka-go HOST:PORT
//
// tests/compat/queues/program_clients.py has the commands. Producers are those of franz-go.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

type record struct {
	Offset    int64       `json:"offset"`
	Timestamp int64       `json:"timestamp"` // milliseconds; 0 when produced: the current time
	Key       string      `json:"key"`       // only when produced; "": none
	Value     string      `json:"value"`
	Headers   [][2]string `json:"headers"`
}

type command struct {
	Op            string   `json:"op"`
	Topic         string   `json:"topic"`
	Partition     int32    `json:"partition"` // of a reader without a group
	Group         string   `json:"group"`     // "": none
	ReadCommitted bool     `json:"read_committed"`
	Transaction   string   `json:"transaction"` // "", "commit" or "abort"
	Records       []record `json:"records"`
	Offset        int64    `json:"offset"`
	Timestamp     int64    `json:"timestamp"`
}

type response struct {
	Offsets  []int64  `json:"offsets"`
	Records  []record `json:"records"`
	Position *int64   `json:"position"` // null if the client does not show it
}

type reader interface {
	poll(ctx context.Context) response
	seek(offset int64)
	close(ctx context.Context) // commits, in a group
}

var (
	bootstrap string
	producer  *kgo.Client
	opened    command
	current   reader
)

func main() {
	bootstrap = os.Args[2]
	producer = newClient(
		kgo.ProducerLinger(50*time.Millisecond),
		// As often as the other clients.
		kgo.MetadataMaxAge(500*time.Millisecond), kgo.MetadataMinAge(250*time.Millisecond),
	)
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		var asked command
		check(json.Unmarshal(lines.Bytes(), &asked))
		answer, err := json.Marshal(run(asked))
		check(err)
		fmt.Println(string(answer))
	}
}

func run(asked command) response {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	switch asked.Op {
	case "produce":
		return response{Offsets: produce(ctx, asked)}
	case "open":
		opened = asked
		if os.Args[1] == "kafka-go" {
			current = openKafkaGo(asked)
		} else {
			current = openFranz(asked)
		}
	case "poll":
		return current.poll(ctx)
	case "seek":
		current.seek(asked.Offset)
	case "seek_to_time":
		current.seek(offsetOf(ctx, asked.Timestamp))
	case "close":
		current.close(ctx)
	}
	return response{}
}

func newClient(options ...kgo.Opt) *kgo.Client {
	client, err := kgo.NewClient(append(options, kgo.SeedBrokers(bootstrap))...)
	check(err)
	return client
}

func produce(ctx context.Context, asked command) []int64 {
	var records []*kgo.Record
	for _, one := range asked.Records {
		sent := &kgo.Record{Topic: asked.Topic, Value: []byte(one.Value)}
		if one.Key != "" {
			sent.Key = []byte(one.Key)
		}
		if one.Timestamp > 0 {
			sent.Timestamp = time.UnixMilli(one.Timestamp)
		}
		for _, header := range one.Headers {
			sent.Headers = append(sent.Headers, kgo.RecordHeader{Key: header[0], Value: []byte(header[1])})
		}
		records = append(records, sent)
	}
	client := producer
	if asked.Transaction != "" {
		client = newClient(kgo.TransactionalID(asked.Topic + "-go"))
		defer client.Close()
		check(client.BeginTransaction())
	}
	check(client.ProduceSync(ctx, records...).FirstErr())
	if asked.Transaction != "" {
		check(client.EndTransaction(ctx, kgo.TransactionEndTry(asked.Transaction == "commit")))
	}
	var offsets []int64
	for _, sent := range records {
		offsets = append(offsets, sent.Offset)
	}
	return offsets
}

func offsetOf(ctx context.Context, timestamp int64) int64 {
	partition := kmsg.NewListOffsetsRequestTopicPartition()
	partition.Timestamp = timestamp
	asked := kmsg.NewListOffsetsRequestTopic()
	asked.Topic = opened.Topic
	asked.Partitions = append(asked.Partitions, partition)
	request := kmsg.NewPtrListOffsetsRequest()
	request.ReplicaID = -1
	request.Topics = append(request.Topics, asked)
	listed, err := request.RequestWith(ctx, producer)
	check(err)
	return listed.Topics[0].Partitions[0].Offset
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
