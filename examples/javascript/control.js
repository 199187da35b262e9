// A test of a KafkaJS producer with a broker whose requests fail and whose clock moves: docs/testing.md.
// Usage: node control.js [COMMAND...]; the command is that of kbroker, by default `kbroker`.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";
import kafkajs from "kafkajs";

const [command = "kbroker", ...words] = process.argv.slice(2);
const options = ["start", "--dev", "--listen", "127.0.0.1:0", "--control", "127.0.0.1:0"];
const broker = spawn(command, [...words, ...options], { stdio: ["ignore", "pipe", "ignore"] });

async function post(url, fields = {}) {
  const headers = { "Content-Type": "application/json" };
  const response = await fetch(url, { method: "POST", headers, body: JSON.stringify(fields) });
  const body = await response.json();
  if (!response.ok) throw new Error(body.error);
  return body;
}

try {
  const [line] = await once(createInterface({ input: broker.stdout }), "line");
  const [, bootstrap, control] = line.match(/^kbroker ready: bootstrap (\S+) control (\S+)$/);

  const { topic } = await post(`${control}/topics`, { config: { "retention.ms": 3_600_000 } });
  const { number } = await post(`${control}/faults`, { api: "Produce", topic, error: "NOT_LEADER_OR_FOLLOWER", count: 2 });

  // The program under test: it retries.
  const kafka = new kafkajs.Kafka({ brokers: [bootstrap], logLevel: kafkajs.logLevel.NOTHING });
  const producer = kafka.producer({ createPartitioner: kafkajs.Partitioners.DefaultPartitioner });
  await producer.connect();
  await producer.send({ topic, messages: [{ key: "k", value: "v" }] });
  await producer.disconnect();

  assert.equal((await post(`${control}/faults/remove`, { number })).hits, 2);
  const { records } = await post(`${control}/consume`, { topic, n: 1 });
  assert.equal(records[0].value, "v");
  await post(`${control}/clock/advance`, { hours: 2 });
  assert.deepEqual((await post(`${control}/consume`, { topic })).records, []);
  console.log("passed");
} finally {
  broker.kill();
}
