// Logs in with franz-go or sarama, as lines of JSON on standard input tell it, and produces and consumes a record.
//
// tests/compat/security/test_programs.py has the fields of a line. The response is one line: "record" or "error".
package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"os"
	"time"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	franzscram "github.com/twmb/franz-go/pkg/sasl/scram"
	"github.com/xdg-go/scram"
)

type login struct {
	Client      string `json:"client"`
	Address     string `json:"address"`
	Topic       string `json:"topic"`
	Mechanism   string `json:"mechanism"` // "": none
	User        string `json:"user"`
	Password    string `json:"password"`
	CA          string `json:"ca"` // "": no TLS
	Certificate string `json:"certificate"`
	Key         string `json:"key"`
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var asked login
		result := map[string]string{}
		if err := json.Unmarshal(lines.Bytes(), &asked); err != nil {
			panic(err)
		}
		run := map[string]func(login, *tls.Config) (string, error){"franz-go": franz, "sarama": saramas}[asked.Client]
		config, err := tlsConfig(asked)
		if err == nil {
			result["record"], err = run(asked, config)
		}
		if err != nil {
			result["error"] = err.Error()
		}
		line, _ := json.Marshal(result)
		fmt.Println(string(line))
	}
}

func tlsConfig(asked login) (*tls.Config, error) {
	if asked.CA == "" {
		return nil, nil
	}
	pem, err := os.ReadFile(asked.CA)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{RootCAs: x509.NewCertPool(), ServerName: "localhost"}
	config.RootCAs.AppendCertsFromPEM(pem)
	if asked.Certificate != "" {
		pair, err := tls.LoadX509KeyPair(asked.Certificate, asked.Key)
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

func franz(asked login, config *tls.Config) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	auth := franzscram.Auth{User: asked.User, Pass: asked.Password}
	mechanisms := map[string]sasl.Mechanism{
		"PLAIN":         plain.Auth{User: asked.User, Pass: asked.Password}.AsMechanism(),
		"SCRAM-SHA-256": auth.AsSha256Mechanism(),
		"SCRAM-SHA-512": auth.AsSha512Mechanism(),
	}
	options := []kgo.Opt{kgo.SeedBrokers(asked.Address), kgo.AllowAutoTopicCreation(), kgo.RecordRetries(5),
		kgo.RequestRetries(2), kgo.ConsumeTopics(asked.Topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart())}
	if config != nil {
		options = append(options, kgo.DialTLSConfig(config))
	}
	if asked.Mechanism != "" {
		options = append(options, kgo.SASL(mechanisms[asked.Mechanism]))
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		return "", err
	}
	defer client.Close()
	if err := client.Ping(ctx); err != nil {
		return "", err
	}
	record := &kgo.Record{Topic: asked.Topic, Value: []byte("of franz-go")}
	if err := client.ProduceSync(ctx, record).FirstErr(); err != nil {
		return "", err
	}
	for ctx.Err() == nil {
		for _, got := range client.PollFetches(ctx).Records() {
			return string(got.Value), nil
		}
	}
	return "", ctx.Err()
}

type scramClient struct {
	hash         func() hash.Hash
	conversation *scram.ClientConversation
}

func (s *scramClient) Begin(user, password, authzID string) error {
	client, err := scram.HashGeneratorFcn(s.hash).NewClient(user, password, authzID)
	if err == nil {
		s.conversation = client.NewConversation()
	}
	return err
}
func (s *scramClient) Step(challenge string) (string, error) { return s.conversation.Step(challenge) }
func (s *scramClient) Done() bool                            { return s.conversation.Done() }

func saramas(asked login, config *tls.Config) (string, error) {
	settings := sarama.NewConfig()
	settings.Version = sarama.V2_1_0_0
	settings.Producer.Return.Successes = true
	settings.Metadata.Retry.Max = 0
	settings.Net.TLS.Enable, settings.Net.TLS.Config = config != nil, config
	if asked.Mechanism != "" {
		settings.Net.SASL.Enable = true
		settings.Net.SASL.Mechanism = sarama.SASLMechanism(asked.Mechanism)
		settings.Net.SASL.User, settings.Net.SASL.Password = asked.User, asked.Password
		hashes := map[string]func() hash.Hash{"SCRAM-SHA-256": sha256.New, "SCRAM-SHA-512": sha512.New}
		settings.Net.SASL.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient {
			return &scramClient{hash: hashes[asked.Mechanism]}
		}
	}
	client, err := sarama.NewClient([]string{asked.Address}, settings)
	if err != nil {
		// The first one only says that there is no broker left.
		if broker := sarama.NewBroker(asked.Address); broker.Open(settings) == nil {
			if _, reason := broker.Connected(); reason != nil {
				err = errors.Join(err, reason)
			}
		}
		return "", err
	}
	defer client.Close()
	admin, err := sarama.NewClusterAdminFromClient(client)
	if err != nil {
		return "", err
	}
	if err := admin.CreateTopic(asked.Topic, &sarama.TopicDetail{NumPartitions: 1, ReplicationFactor: 1}, false); err != nil {
		return "", err
	}
	producer, err := sarama.NewSyncProducerFromClient(client)
	if err != nil {
		return "", err
	}
	if _, _, err := producer.SendMessage(&sarama.ProducerMessage{Topic: asked.Topic, Value: sarama.StringEncoder("of sarama")}); err != nil {
		return "", err
	}
	consumer, err := sarama.NewConsumerFromClient(client)
	if err != nil {
		return "", err
	}
	partition, err := consumer.ConsumePartition(asked.Topic, 0, sarama.OffsetOldest)
	if err != nil {
		return "", err
	}
	defer partition.Close()
	return string((<-partition.Messages()).Value), nil
}
