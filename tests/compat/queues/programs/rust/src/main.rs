//! Prints the records of a partition as lines of JSON, from an offset on. Usage: rskafka_reader HOST:PORT TOPIC PARTITION
//! OFFSET
//!
//! rskafka is built without codecs, as many programs build it. Names and values are plain text.

use futures::StreamExt;
use rskafka::client::consumer::{StartOffset, StreamConsumerBuilder};
use rskafka::client::partition::UnknownTopicHandling;
use rskafka::client::ClientBuilder;
use std::sync::Arc;

fn text(bytes: &[u8]) -> String {
    format!("{:?}", String::from_utf8_lossy(bytes))
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let client = ClientBuilder::new(vec![arguments[1].clone()])
        .build()
        .await
        .unwrap();
    let partition = client
        .partition_client(
            arguments[2].clone(),
            arguments[3].parse().unwrap(),
            UnknownTopicHandling::Retry,
        )
        .await
        .unwrap();
    let start = StartOffset::At(arguments[4].parse().unwrap());
    let mut stream = StreamConsumerBuilder::new(Arc::new(partition), start)
        .with_max_wait_ms(100)
        .build();
    while let Some(result) = stream.next().await {
        match result {
            Ok((got, _)) => {
                let headers: Vec<String> = got
                    .record
                    .headers
                    .iter()
                    .map(|(name, value)| format!("[{}, {}]", text(name.as_bytes()), text(value)))
                    .collect();
                println!(
                    "{{\"offset\": {}, \"timestamp\": {}, \"value\": {}, \"headers\": [{}]}}",
                    got.offset,
                    got.record.timestamp.timestamp_millis(),
                    text(&got.record.value.unwrap_or_default()),
                    headers.join(", ")
                );
            }
            Err(error) => println!("{{\"error\": {}}}", text(error.to_string().as_bytes())),
        }
    }
}
