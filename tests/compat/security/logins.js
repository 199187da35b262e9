// Logs in with KafkaJS, as lines of JSON on standard input tell it, and produces and consumes a record.
//
// tests/compat/security/test_programs.py has the fields of a line. The response is one line: "record" or "error".

import fs from "node:fs";
import readline from "node:readline";
import kafkajs from "kafkajs";

async function run(asked) {
  const settings = { brokers: [asked.address], retry: { retries: 2 }, logLevel: kafkajs.logLevel.NOTHING };
  if (asked.ca) {
    const pem = (file) => (file ? fs.readFileSync(file) : undefined);
    settings.ssl = { ca: pem(asked.ca), cert: pem(asked.certificate), key: pem(asked.key), servername: "localhost" };
  }
  if (asked.mechanism) {
    settings.sasl = { mechanism: asked.mechanism.toLowerCase(), username: asked.user, password: asked.password };
  }
  const kafka = new kafkajs.Kafka(settings);
  const producer = kafka.producer({ createPartitioner: kafkajs.Partitioners.DefaultPartitioner });
  await producer.connect();
  await producer.send({ topic: asked.topic, messages: [{ value: "of KafkaJS" }] });
  await producer.disconnect();
  const consumer = kafka.consumer({ groupId: asked.topic });
  await consumer.connect();
  await consumer.subscribe({ topic: asked.topic, fromBeginning: true });
  const record = await new Promise((resolve) => {
    consumer.run({ eachMessage: async ({ message }) => resolve(message.value.toString()) });
  });
  await consumer.disconnect();
  return record;
}

for await (const line of readline.createInterface({ input: process.stdin })) {
  const result = await run(JSON.parse(line)).then((record) => ({ record }), (error) => ({ error: String(error) }));
  console.log(JSON.stringify(result));
}
