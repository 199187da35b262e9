// A work queue with franz-go: ten tasks, one of which fails at first. Usage: go run . [HOST:PORT] [TOPIC]
//
// Any number of workers of the group share the tasks of a partition. A task that is released, or whose worker dies, is
// delivered again.
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
	bootstrap, topic := "127.0.0.1:9092", "tasks"
	if len(os.Args) > 1 {
		bootstrap = os.Args[1]
	}
	if len(os.Args) > 2 {
		topic = os.Args[2]
	}
	worker, err := kgo.NewClient(
		kgo.SeedBrokers(bootstrap),
		kgo.AllowAutoTopicCreation(),
		kgo.ConsumeTopics(topic),
		kgo.ShareGroup(topic+"-workers"),
	)
	if err != nil {
		log.Fatal(err)
	}
	defer worker.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	for number := range 10 {
		record := &kgo.Record{Topic: topic, Value: fmt.Appendf(nil, "task %d", number)}
		if err := worker.ProduceSync(ctx, record).FirstErr(); err != nil {
			log.Fatal(err)
		}
	}

	failed := map[string]bool{}
	for done := 0; done < 10; {
		fetches := worker.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			log.Fatal(err)
		}
		fetches.EachRecord(func(task *kgo.Record) {
			name := string(task.Value)
			if name == "task 3" && !failed[name] {
				failed[name] = true
				fmt.Println(name, "failed, and will be delivered again")
				task.Ack(kgo.AckRelease)
				return
			}
			fmt.Println(name, "done")
			task.Ack(kgo.AckAccept)
			done++
		})
		if err := worker.FlushAcks(ctx); err != nil {
			log.Fatal(err)
		}
	}
}
