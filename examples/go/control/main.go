// A test of a franz-go producer with a broker whose requests fail and whose clock moves: docs/testing.md.
// Usage: go run ./control [COMMAND...]; the command is that of kbroker, by default `kbroker`.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/exec"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

type fields map[string]any

// Response has the results of the calls below.
type Response struct {
	Topic, Error string
	Number, Hits int
	Records      []struct{ Value string }
}

func post(url string, body fields) (response Response) {
	data, _ := json.Marshal(body)
	answer, err := http.Post(url, "application/json", bytes.NewReader(data))
	check(err)
	defer answer.Body.Close()
	check(json.NewDecoder(answer.Body).Decode(&response))
	must(answer.StatusCode == http.StatusOK, "%s: %s", url, response.Error)
	return response
}

// check and must panic, so that the broker is stopped.
func check(err error) {
	if err != nil {
		log.Panic(err)
	}
}

func must(isTrue bool, format string, arguments ...any) {
	if !isTrue {
		log.Panicf(format, arguments...)
	}
}

func main() {
	command := append(append([]string{}, os.Args[1:]...), "kbroker")[:max(1, len(os.Args)-1)]
	options := []string{"start", "--dev", "--listen", "127.0.0.1:0", "--control", "127.0.0.1:0"}
	broker := exec.Command(command[0], append(command[1:], options...)...)
	output, err := broker.StdoutPipe()
	check(err)
	check(broker.Start())
	defer func() {
		broker.Process.Signal(os.Interrupt)
		broker.Wait()
	}()
	line, err := bufio.NewReader(output).ReadString('\n')
	check(err)
	var bootstrap, control string
	_, err = fmt.Sscanf(line, "kbroker ready: bootstrap %s control %s", &bootstrap, &control)
	check(err)

	topic := post(control+"/topics", fields{"config": fields{"retention.ms": 3600000}}).Topic
	fault := post(control+"/faults", fields{"api": "Produce", "topic": topic, "error": "NOT_LEADER_OR_FOLLOWER", "count": 2})

	// The program under test: it retries.
	client, err := kgo.NewClient(kgo.SeedBrokers(bootstrap))
	check(err)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	check(client.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: []byte("v")}).FirstErr())
	client.Close()

	hits := post(control+"/faults/remove", fields{"number": fault.Number}).Hits
	must(hits == 2, "%d hits", hits)
	records := post(control+"/consume", fields{"topic": topic, "n": 1}).Records
	must(records[0].Value == "v", "%v", records)
	post(control+"/clock/advance", fields{"hours": 2})
	records = post(control+"/consume", fields{"topic": topic}).Records
	must(len(records) == 0, "%v", records)
	fmt.Println("passed")
}
