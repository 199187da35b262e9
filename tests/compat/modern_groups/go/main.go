// Members of consumer groups (KIP-848) and share groups (KIP-932), as lines of JSON on standard input tell them.
// Usage: groups HOST:PORT
//
// tests/compat/modern_groups/members.py has the commands.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

type command struct {
	Op       string           `json:"op"`
	Member   string           `json:"member"`
	Group    string           `json:"group"`
	Topic    string           `json:"topic"`
	Pattern  string           `json:"pattern"`  // "": none
	Instance string           `json:"instance"` // "": not static
	Share    bool             `json:"share"`
	Acks     map[string]int64 `json:"acks"` // of a share group, by value; the others are accepted
}

type record struct {
	Topic      string `json:"topic"`
	Partition  int32  `json:"partition"`
	Offset     int64  `json:"offset"`
	Value      string `json:"value"`
	Deliveries int32  `json:"deliveries"`
}

type response struct {
	Records    []record `json:"records"`
	Partitions []string `json:"partitions"`
}

type member struct {
	client *kgo.Client
	group  string
	seat   string // the instance id
	lock   sync.Mutex
	owned  map[string]bool // "topic:partition"
	failed error           // of an acknowledgement
	polled []*kgo.Record
}

func main() {
	members := map[string]*member{}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var asked command
		check(json.Unmarshal(lines.Bytes(), &asked))
		if asked.Op == "open" {
			members[asked.Member] = open(asked)
		}
		answer, err := json.Marshal(members[asked.Member].run(asked))
		check(err)
		fmt.Println(string(answer))
	}
}

func open(asked command) *member {
	opened := &member{group: asked.Group, seat: asked.Instance, owned: map[string]bool{}}
	options := []kgo.Opt{
		kgo.SeedBrokers(os.Args[1]),
		kgo.ClientID(asked.Member),
		kgo.FetchMaxWait(100 * time.Millisecond),
		kgo.MetadataMaxAge(500 * time.Millisecond), kgo.MetadataMinAge(250 * time.Millisecond),
	}
	if asked.Pattern != "" {
		options = append(options, kgo.ConsumeRegex(), kgo.ConsumeTopics(asked.Pattern))
	} else {
		options = append(options, kgo.ConsumeTopics(asked.Topic))
	}
	if asked.Share {
		options = append(options, kgo.ShareGroup(asked.Group), kgo.ShareAckCallback(opened.onAcks))
	} else {
		options = append(options,
			kgo.ConsumerGroup(asked.Group), kgo.ServerSideBalancer(), kgo.Balancers(kgo.StickyBalancer()),
			kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.DisableAutoCommit(),
			kgo.OnPartitionsAssigned(opened.moved(true)),
			kgo.OnPartitionsRevoked(opened.moved(false)), kgo.OnPartitionsLost(opened.moved(false)))
	}
	if asked.Instance != "" {
		options = append(options, kgo.InstanceID(asked.Instance))
	}
	client, err := kgo.NewClient(options...)
	check(err)
	opened.client = client
	return opened
}

func (m *member) run(asked command) response {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	switch asked.Op {
	case "poll":
		return response{Records: m.poll(ctx)}
	case "partitions":
		m.lock.Lock()
		defer m.lock.Unlock()
		partitions := []string{}
		for name := range m.owned {
			partitions = append(partitions, name)
		}
		return response{Partitions: partitions}
	case "commit":
		check(m.client.CommitUncommittedOffsets(ctx))
	case "acknowledge":
		for _, got := range m.polled {
			status := kgo.AckAccept
			if chosen, ok := asked.Acks[string(got.Value)]; ok {
				status = kgo.AckStatus(chosen)
			}
			got.Ack(status)
		}
		check(m.client.FlushAcks(ctx))
		m.lock.Lock()
		defer m.lock.Unlock()
		check(m.failed)
	case "close":
		memberID, _ := m.client.GroupMetadata()
		m.client.Close()
		if m.seat != "" {
			m.leaveSeat(ctx, memberID)
		}
	}
	return response{}
}

// As a static member, franz-go 1.22.3 leaves without its instance id, which Kafka refuses.
func (m *member) leaveSeat(ctx context.Context, memberID string) {
	client, err := kgo.NewClient(kgo.SeedBrokers(os.Args[1]))
	check(err)
	defer client.Close()
	request := kmsg.NewPtrConsumerGroupHeartbeatRequest()
	request.Group, request.MemberID, request.MemberEpoch, request.InstanceID = m.group, memberID, -2, &m.seat
	left, err := request.RequestWith(ctx, client)
	check(err)
	check(kerr.ErrorForCode(left.ErrorCode))
}

func (m *member) poll(ctx context.Context) []record {
	ctx, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	fetches := m.client.PollFetches(ctx)
	for _, failed := range fetches.Errors() {
		if !errors.Is(failed.Err, context.DeadlineExceeded) {
			log.Fatal(failed.Err)
		}
	}
	m.polled = fetches.Records()
	records := []record{}
	for _, got := range m.polled {
		records = append(records, record{got.Topic, got.Partition, got.Offset, string(got.Value), got.DeliveryCount()})
	}
	return records
}

func (m *member) moved(owned bool) func(context.Context, *kgo.Client, map[string][]int32) {
	return func(_ context.Context, _ *kgo.Client, moved map[string][]int32) {
		m.lock.Lock()
		defer m.lock.Unlock()
		for topic, partitions := range moved {
			for _, partition := range partitions {
				name := fmt.Sprintf("%s:%d", topic, partition)
				if owned {
					m.owned[name] = true
				} else {
					delete(m.owned, name)
				}
			}
		}
	}
}

func (m *member) onAcks(_ *kgo.Client, results kgo.ShareAckResults) {
	m.lock.Lock()
	defer m.lock.Unlock()
	m.failed = errors.Join(m.failed, results.Error())
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
