// Produces and consumes ten records with franz-go. Usage: go run . [HOST:PORT] [TOPIC]
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	bootstrap, topic := "127.0.0.1:9092", "examples"
	if len(os.Args) > 1 {
		bootstrap = os.Args[1]
	}
	if len(os.Args) > 2 {
		topic = os.Args[2]
	}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(bootstrap),
		kgo.AllowAutoTopicCreation(),
		kgo.ConsumeTopics(topic),
		kgo.ConsumerGroup(topic+"-go"), // a new group starts at the earliest offset
		kgo.DisableAutoCommit(),
	)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	for number := range 10 {
		key, value := fmt.Sprintf("key-%d", number%3), fmt.Sprintf("value %d", number)
		record := &kgo.Record{Topic: topic, Key: []byte(key), Value: []byte(value)}
		if err := client.ProduceSync(ctx, record).FirstErr(); err != nil {
			log.Fatal(err)
		}
	}

	for count := 0; count < 10; {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			log.Fatal(err)
		}
		fetches.EachRecord(func(record *kgo.Record) {
			fmt.Printf("%d:%d %s = %s\n", record.Partition, record.Offset, record.Key, record.Value)
			count++
		})
	}
	if err := client.CommitUncommittedOffsets(ctx); err != nil {
		log.Fatal(err)
	}
}
