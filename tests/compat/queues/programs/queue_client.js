// Produces and consumes with KafkaJS, as lines of JSON on standard input tell it. Usage: node queue_client.js HOST:PORT
//
// tests/compat/queues/program_clients.py has the commands. Positions are those of partition 0.

import readline from "node:readline";
import kafkajs from "kafkajs";

const kafka = new kafkajs.Kafka({ brokers: [process.argv[2]], logLevel: kafkajs.logLevel.NOTHING });
const settings = { createPartitioner: kafkajs.Partitioners.DefaultPartitioner, idempotent: true, maxInFlightRequests: 1 };
// As often as the other clients.
const producer = kafka.producer({ ...settings, metadataMaxAge: 500 });
const admin = kafka.admin();
await producer.connect();
await admin.connect();

let consumer;
let topic;
let position = 0;
let records = [];
let received = () => {};

function messages(asked) {
  return asked.records.map(({ key, value, headers, timestamp }) => {
    const message = { key: key || null, value, headers: Object.fromEntries(headers) };
    return timestamp > 0 ? { ...message, timestamp: String(timestamp) } : message;
  });
}

const commands = {
  async produce(asked) {
    const batch = { topic: asked.topic, messages: messages(asked) };
    if (!asked.transaction) {
      const [{ baseOffset }] = await producer.send(batch);
      return { offsets: asked.records.map((_, index) => Number(baseOffset) + index) };
    }
    const transactional = kafka.producer({ ...settings, transactionalId: `${asked.topic}-javascript` });
    await transactional.connect();
    const transaction = await transactional.transaction();
    await transaction.send(batch);
    await (asked.transaction === "commit" ? transaction.commit() : transaction.abort());
    await transactional.disconnect();
    return {};
  },

  async open(asked) {
    topic = asked.topic;
    position = 0;
    records = [];
    consumer = kafka.consumer({
      groupId: asked.group,
      readUncommitted: !asked.read_committed,
      maxWaitTimeInMs: 100,
    });
    consumer.on(consumer.events.END_BATCH_PROCESS, ({ payload }) => {
      if (payload.partition === 0) position = Number(payload.lastOffset) + 1;
      received();
    });
    await consumer.connect();
    await consumer.subscribe({ topic, fromBeginning: true });
    await consumer.run({
      eachMessage: async ({ message }) => {
        const headers = Object.entries(message.headers).map(([name, value]) => [name, value.toString()]);
        const { offset, timestamp, value } = message;
        records.push({ offset: Number(offset), timestamp: Number(timestamp), value: value.toString(), headers });
      },
    });
    return {};
  },

  async poll() {
    if (records.length === 0) {
      await new Promise((resolve) => {
        const timer = setTimeout(resolve, 500);
        received = () => {
          clearTimeout(timer);
          resolve();
        };
      });
    }
    const polled = records;
    records = [];
    return { records: polled, position };
  },

  async seek({ offset }) {
    position = offset;
    consumer.seek({ topic, partition: 0, offset: String(offset) });
    return {};
  },

  async seek_to_time({ timestamp }) {
    const [{ offset }] = await admin.fetchTopicOffsetsByTimestamp(topic, timestamp);
    return commands.seek({ offset: Number(offset) });
  },

  async close() {
    await consumer.disconnect(); // commits the position
    return {};
  },
};

for await (const line of readline.createInterface({ input: process.stdin })) {
  const asked = JSON.parse(line);
  console.log(JSON.stringify(await commands[asked.op](asked)));
}
process.exit(0);
