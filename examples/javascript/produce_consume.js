// Produces and consumes ten records with KafkaJS. Usage: node produce_consume.js [HOST:PORT] [TOPIC]

import kafkajs from "kafkajs";

const [bootstrap = "127.0.0.1:9092", topic = "examples"] = process.argv.slice(2);
const kafka = new kafkajs.Kafka({ brokers: [bootstrap], logLevel: kafkajs.logLevel.NOTHING });

const admin = kafka.admin();
await admin.connect();
await admin.createTopics({ topics: [{ topic }] }); // no error if it exists
await admin.disconnect();

const producer = kafka.producer({ createPartitioner: kafkajs.Partitioners.DefaultPartitioner });
await producer.connect();
for (let number = 0; number < 10; number++) {
  await producer.send({ topic, messages: [{ key: `key-${number % 3}`, value: `value ${number}` }] });
}
await producer.disconnect();

const consumer = kafka.consumer({ groupId: `${topic}-javascript` });
await consumer.connect();
await consumer.subscribe({ topic, fromBeginning: true }); // where a new group starts
let count = 0;
const done = new Promise((resolve) => {
  consumer.run({
    eachMessage: async ({ partition, message }) => {
      console.log(`${partition}:${message.offset} ${message.key} = ${message.value}`);
      if (++count === 10) resolve();
    },
  });
});
await done;
await consumer.disconnect(); // commits the offsets
