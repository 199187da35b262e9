// Members of consumer groups (KIP-848) and share groups (KIP-932), as lines of JSON on standard input tell them.
// Usage: modern_groups HOST:PORT
//
// tests/compat/modern_groups/members.py has the commands.
use std::collections::HashMap;
use std::time::Duration;

use kafkit_client::{
    AcknowledgeType, AutoOffsetReset, ConsumerConfig, ConsumerRecord, ConsumerRecords, KafkaConsumer,
    KafkaShareConsumer, Result, ShareRecord, ShareRecords, SubscriptionPattern,
};
use serde_json::{Value, json};

const POLL: Duration = Duration::from_millis(200);

enum Member {
    // with the records that are not committed
    Consumer(KafkaConsumer, Vec<ConsumerRecord>),
    // with the records of its last poll
    Share(KafkaShareConsumer, Vec<ShareRecord>),
}

#[tokio::main]
async fn main() -> Result<()> {
    let mut members = HashMap::new();
    for line in std::io::stdin().lines() {
        let asked: Value = serde_json::from_str(&line.unwrap()).unwrap();
        let name = text(&asked, "member");
        if text(&asked, "op") == "open" {
            members.insert(name, open(&asked).await?);
            println!("{{}}");
        } else if text(&asked, "op") == "close" {
            match members.remove(&name).unwrap() {
                Member::Consumer(client, _) => client.shutdown().await?,
                Member::Share(client, _) => client.shutdown().await?,
            }
            println!("{{}}");
        } else {
            println!("{}", run(members.get_mut(&name).unwrap(), &asked).await?);
        }
    }
    Ok(())
}

fn text(asked: &Value, field: &str) -> String {
    asked[field].as_str().unwrap_or_default().to_owned()
}

async fn open(asked: &Value) -> Result<Member> {
    let (topic, pattern, instance) = (text(asked, "topic"), text(asked, "pattern"), text(asked, "instance"));
    let bootstrap = std::env::args().nth(1).unwrap();
    let mut config = ConsumerConfig::new(bootstrap, text(asked, "group"))
        .with_client_id(text(asked, "member"))
        .with_auto_offset_reset(AutoOffsetReset::Earliest)
        .with_enable_auto_commit(false)
        .with_metadata_max_age(Duration::from_millis(500))
        .with_fetch_max_wait(Duration::from_millis(100));
    if asked["share"] == true {
        let mut client = KafkaShareConsumer::connect(config).await?;
        client.subscribe(vec![topic]).await?;
        return Ok(Member::Share(client, vec![]));
    }
    if !instance.is_empty() {
        config = config.with_instance_id(instance);
    }
    let client = KafkaConsumer::connect(config).await?;
    if pattern.is_empty() {
        client.subscribe(vec![topic]).await?;
    } else {
        client.subscribe_pattern(SubscriptionPattern::new(pattern)).await?;
    }
    Ok(Member::Consumer(client, vec![]))
}

async fn run(member: &mut Member, asked: &Value) -> Result<Value> {
    let op = text(asked, "op");
    Ok(match member {
        Member::Consumer(client, uncommitted) => match op.as_str() {
            "poll" => {
                let polled = client.poll_for(POLL).await?;
                uncommitted.extend(polled.iter().cloned());
                json!({"records": polled.iter().map(|got| shown(got, 0)).collect::<Vec<_>>()})
            }
            "partitions" => {
                let owned = client.assignment().await?;
                let names = owned.iter().map(|one| format!("{}:{}", one.topic, one.partition));
                json!({"partitions": names.collect::<Vec<_>>()})
            }
            "commit" => {
                client
                    .commit(&ConsumerRecords::new(std::mem::take(uncommitted)))
                    .await?;
                json!({})
            }
            _ => panic!("{op}"),
        },
        Member::Share(client, polled) => match op.as_str() {
            "poll" => {
                let records: ShareRecords = client.poll_for(POLL).await?;
                *polled = records.into_inner();
                let shown = polled.iter().map(|got| shown(&got.record, got.delivery_count));
                json!({"records": shown.collect::<Vec<_>>()})
            }
            "acknowledge" => {
                for got in polled.iter() {
                    let chosen = match asked["acks"][value(&got.record)].as_i64() {
                        Some(2) => AcknowledgeType::Release,
                        Some(3) => AcknowledgeType::Reject,
                        _ => AcknowledgeType::Accept,
                    };
                    client.acknowledge(got, chosen);
                }
                client.commit_sync().await?;
                json!({})
            }
            _ => panic!("{op}"),
        },
    })
}

fn value(record: &ConsumerRecord) -> String {
    String::from_utf8(record.value.as_deref().unwrap_or_default().to_vec()).unwrap()
}

fn shown(record: &ConsumerRecord, deliveries: i16) -> Value {
    json!({
        "topic": record.topic, "partition": record.partition, "offset": record.offset,
        "value": value(record), "deliveries": deliveries,
    })
}
