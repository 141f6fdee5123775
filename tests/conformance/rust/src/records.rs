//! Records: written with their offsets told, and read without a group.

use std::sync::Mutex;
use std::time::Instant;

use base64::prelude::{Engine, BASE64_STANDARD};
use rdkafka::client::ClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, DeliveryResult, Header, Headers, Message, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer, ProducerContext};
use rdkafka::{Offset, TopicPartitionList};
use serde_json::{json, Value};

use crate::{text, text_or, Told, WAIT};

pub type Writer = BaseProducer<Sending>;

/// What was acknowledged, by the number of the record.
#[derive(Default)]
pub struct Sending {
    delivered: Mutex<Vec<(usize, Result<i64, KafkaError>)>>,
}

impl ClientContext for Sending {}

impl ProducerContext for Sending {
    type DeliveryOpaque = Box<usize>;

    fn delivery(&self, result: &DeliveryResult<'_>, number: Box<usize>) {
        let outcome = match result {
            Ok(message) => Ok(message.offset()),
            Err((error, _)) => Err(error.clone()),
        };
        self.delivered.lock().expect("nobody panicked").push((*number, outcome));
    }
}

fn decoded(field: &Value) -> Option<Vec<u8>> {
    field.as_str().map(|text| BASE64_STANDARD.decode(text).expect("base64"))
}

fn encoded(data: Option<&[u8]>) -> Value {
    data.map_or(Value::Null, |bytes| BASE64_STANDARD.encode(bytes).into())
}

pub fn send(producer: &Writer, request: &Value) -> Told {
    let written = request["records"].as_array().expect("records");
    for (number, record) in written.iter().enumerate() {
        let (key, value) = (decoded(&record["key"]), decoded(&record["value"]));
        let mut headers = OwnedHeaders::new();
        for header in record["headers"].as_array().expect("headers") {
            let bytes = decoded(&header[1]);
            headers = headers.insert(Header { key: header[0].as_str().expect("a name"), value: bytes.as_ref() });
        }
        let mut one = BaseRecord::with_opaque_to(text(request, "topic"), Box::new(number))
            .partition(record["partition"].as_i64().expect("a partition") as i32)
            .headers(headers);
        one.key = key.as_ref();
        one.payload = value.as_ref();
        one.timestamp = record["timestamp"].as_i64();
        producer.send(one).map_err(|(error, _)| error)?;
    }
    producer.flush(WAIT)?;
    let mut delivered = std::mem::take(&mut *producer.context().delivered.lock().expect("nobody panicked"));
    delivered.sort_by_key(|(number, _)| *number);
    let offsets = delivered.into_iter().map(|(_, outcome)| outcome).collect::<Result<Vec<i64>, KafkaError>>()?;
    Ok(json!({"offsets": offsets}))
}

pub fn consume(settings: &ClientConfig, request: &Value) -> Told {
    let consumer: BaseConsumer = settings
        .clone()
        .set("group.id", "unused")
        .set("enable.auto.commit", "false")
        .set("isolation.level", text_or(request, "isolation", "read_uncommitted"))
        .create()?;
    let start = request["offset"].as_i64().map_or(Offset::Beginning, Offset::Offset);
    let mut places = TopicPartitionList::new();
    for partition in request["partitions"].as_array().expect("partitions") {
        places.add_partition_offset(text(request, "topic"), partition.as_i64().expect("a partition") as i32, start)?;
    }
    consumer.assign(&places)?;
    let count = request["count"].as_u64().expect("a count") as usize;
    let mut read = Vec::new();
    let deadline = Instant::now() + WAIT;
    while read.len() < count && Instant::now() < deadline {
        match consumer.poll(WAIT / 30) {
            Some(Ok(message)) => read.push(tell(&message)),
            Some(Err(error)) if error.rdkafka_error_code() == Some(RDKafkaErrorCode::UnknownTopicOrPartition) => {}
            Some(Err(error)) => return Err(error.into()),
            None => {}
        }
    }
    Ok(json!({"records": read}))
}

pub fn tell(message: &BorrowedMessage<'_>) -> Value {
    let headers: Vec<Value> = message
        .headers()
        .map(|all| all.iter().map(|one| json!([one.key, encoded(one.value)])).collect())
        .unwrap_or_default();
    json!({
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": message.timestamp().to_millis(),
        "key": encoded(message.key()),
        "value": encoded(message.payload()),
        "headers": headers,
    })
}
