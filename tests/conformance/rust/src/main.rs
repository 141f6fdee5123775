//! rdkafka (librdkafka) behind the verbs of the conformance suite: lines of JSON in and out.
//! The format and the verbs: ../../suite/steps.py.

mod administration;
mod records;

use std::collections::HashMap;
use std::io::{BufRead, Write};
use std::sync::mpsc::{channel, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer, ConsumerGroupMetadata};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::Producer;
use rdkafka::{Offset, TopicPartitionList};
use serde_json::{json, Value};

use records::{Sending, Writer};

pub const WAIT: Duration = Duration::from_secs(30);

pub enum Failure {
    Unsupported(&'static str),
    Kafka(KafkaError),
    Coded(RDKafkaErrorCode),
}

impl From<KafkaError> for Failure {
    fn from(error: KafkaError) -> Self {
        Failure::Kafka(error)
    }
}

pub type Told = Result<Value, Failure>;

type Asked = Box<dyn FnOnce(&BaseConsumer, &[Value]) + Send>;

/// A consumer in a group: one thread polls, and does what else is asked between two polls.
struct Member {
    asked: Sender<Asked>,
    thread: JoinHandle<()>,
}

impl Member {
    fn new(consumer: BaseConsumer) -> Member {
        let (asked, questions) = channel::<Asked>();
        let thread = std::thread::spawn(move || {
            let mut read = Vec::new();
            loop {
                if let Some(Ok(message)) = consumer.poll(Duration::from_millis(50)) {
                    read.push(records::tell(&message));
                }
                loop {
                    match questions.try_recv() {
                        Ok(question) => question(&consumer, &read),
                        Err(std::sync::mpsc::TryRecvError::Empty) => break,
                        Err(std::sync::mpsc::TryRecvError::Disconnected) => return, // the consumer is closed
                    }
                }
            }
        });
        Member { asked, thread }
    }

    fn call<T: Send + 'static>(&self, what: impl FnOnce(&BaseConsumer, &[Value]) -> T + Send + 'static) -> T {
        let (answer, told) = channel();
        self.asked
            .send(Box::new(move |consumer, read| answer.send(what(consumer, read)).expect("somebody waits")))
            .expect("the member polls");
        told.recv_timeout(2 * WAIT).expect("an answer between two polls")
    }

    fn leave(self) {
        drop(self.asked);
        self.thread.join().expect("the member ends");
    }
}

struct Driver {
    settings: ClientConfig,
    administration: administration::Administration,
    members: HashMap<String, Member>,
    producers: HashMap<String, Writer>,
}

impl Driver {
    fn run(&mut self, verb: &str, request: &Value) -> Told {
        match verb {
            "hello" => {
                let (_, library) = rdkafka::util::get_rdkafka_version();
                Ok(json!({"version": format!("0.39.0 (librdkafka {library})")}))
            }
            "reset" => self.reset(),
            "produce" => self.produce(request),
            "consume" => records::consume(&self.settings, request),
            "join" => self.join(request),
            "member" => Ok(self.members[text(request, "member")].call(|consumer, read| {
                let assigned = consumer.assignment().expect("an assignment");
                let places: Vec<Value> =
                    assigned.elements().iter().map(|one| json!([one.topic(), one.partition()])).collect();
                json!({"assigned": places, "records": read})
            })),
            "commit" => {
                let member = &self.members[text(request, "member")];
                member.call(|consumer, _| consumer.commit_consumer_state(CommitMode::Sync))?;
                Ok(json!({}))
            }
            "leave" => {
                self.members.remove(text(request, "member")).expect("a member").leave();
                Ok(json!({}))
            }
            "open" => self.open(request),
            "begin" => done(self.producer(request).begin_transaction()),
            "send" => records::send(self.producer(request), request),
            "send_offsets" => self.send_offsets(request),
            "commit_transaction" => done(self.producer(request).commit_transaction(WAIT)),
            "abort_transaction" => done(self.producer(request).abort_transaction(WAIT)),
            _ => self.administration.run(verb, request),
        }
    }

    fn reset(&mut self) -> Told {
        self.members.drain().for_each(|(_, member)| member.leave());
        self.producers.clear();
        Ok(json!({}))
    }

    fn producer(&self, request: &Value) -> &Writer {
        &self.producers[text(request, "producer")]
    }

    fn produce(&self, request: &Value) -> Told {
        let mut settings = self.settings.clone();
        settings
            .set("compression.type", text_or(request, "codec", "none"))
            .set("acks", text_or(request, "acks", "all"))
            .set("enable.idempotence", request["idempotent"].as_bool().unwrap_or(false).to_string())
            .set("message.max.bytes", "2000000");
        records::send(&settings.create_with_context(Sending::default())?, request)
    }

    fn join(&mut self, request: &Value) -> Told {
        let protocol = text_or(request, "protocol", "classic");
        let mut settings = self.settings.clone();
        settings
            .set("group.id", text(request, "group"))
            .set("group.protocol", protocol)
            .set("auto.offset.reset", text(request, "reset"))
            .set("enable.auto.commit", (text(request, "commit") == "auto").to_string())
            .set("auto.commit.interval.ms", "200")
            .set("isolation.level", text_or(request, "isolation", "read_uncommitted"));
        if protocol == "classic" {
            let assignor = text_or(request, "assignor", "range");
            if assignor == "sticky" {
                return Err(Failure::Unsupported("librdkafka has no assignor sticky"));
            }
            settings
                .set("partition.assignment.strategy", assignor)
                .set("session.timeout.ms", request["session_ms"].as_i64().unwrap_or(10_000).to_string())
                .set("heartbeat.interval.ms", "200");
        }
        if let Some(instance) = request["instance"].as_str() {
            settings.set("group.instance.id", instance);
        }
        if let Some(refresh_ms) = request["refresh_ms"].as_i64() {
            settings.set("topic.metadata.refresh.interval.ms", refresh_ms.to_string());
        }
        let consumer: BaseConsumer = settings.create()?;
        let topics = request["topics"].as_array().expect("topics");
        consumer.subscribe(&topics.iter().map(|topic| topic.as_str().expect("a name")).collect::<Vec<_>>())?;
        self.members.insert(text(request, "member").to_owned(), Member::new(consumer));
        Ok(json!({}))
    }

    fn open(&mut self, request: &Value) -> Told {
        let producer: Writer = self
            .settings
            .clone()
            .set("transactional.id", text(request, "transactional_id"))
            .set("transaction.timeout.ms", request["timeout_ms"].to_string())
            .set("compression.type", text_or(request, "codec", "none"))
            .create_with_context(Sending::default())?;
        producer.init_transactions(WAIT)?;
        self.producers.insert(text(request, "producer").to_owned(), producer);
        Ok(json!({}))
    }

    fn send_offsets(&self, request: &Value) -> Told {
        let mut offsets = TopicPartitionList::new();
        for (partition, offset) in request["offsets"].as_object().expect("offsets") {
            let place = partition.parse().expect("a partition");
            let at = Offset::Offset(offset.as_i64().expect("an offset"));
            offsets.add_partition_offset(text(request, "topic"), place, at)?;
        }
        let member = &self.members[text(request, "member")];
        let group: ConsumerGroupMetadata = member.call(|consumer, _| consumer.group_metadata().expect("a group"));
        done(self.producer(request).send_offsets_to_transaction(&offsets, &group, WAIT))
    }
}

fn done(result: Result<(), KafkaError>) -> Told {
    result?;
    Ok(json!({}))
}

pub fn text<'a>(request: &'a Value, name: &str) -> &'a str {
    request[name].as_str().expect(name)
}

fn text_or<'a>(request: &'a Value, name: &str, otherwise: &'a str) -> &'a str {
    request[name].as_str().unwrap_or(otherwise)
}

fn refused(code: RDKafkaErrorCode, message: String) -> Value {
    match code {
        RDKafkaErrorCode::Fenced => json!({"refused": "fenced", "message": message}),
        _ if (code as i32) < -1 => json!({"refused": format!("{code:?}"), "message": message}),
        _ => json!({"refused": code as i32, "message": message}),
    }
}

fn answer(told: Told) -> Value {
    match told {
        Ok(told) => json!({"told": told}),
        Err(Failure::Unsupported(reason)) => json!({"unsupported": reason}),
        Err(Failure::Coded(code)) => refused(code, code.to_string()),
        Err(Failure::Kafka(error)) => {
            let code = error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Unknown);
            refused(code, error.to_string())
        }
    }
}

fn main() {
    let bootstrap = std::env::args().nth(1).expect("HOST:PORT");
    let mut settings = ClientConfig::new();
    settings.set("bootstrap.servers", bootstrap);
    let administration = administration::Administration::new(&settings);
    let mut driver = Driver { settings, administration, members: HashMap::new(), producers: HashMap::new() };
    for line in std::io::stdin().lock().lines() {
        let request: Value = serde_json::from_str(&line.expect("a line")).expect("JSON");
        let told = driver.run(text(&request, "verb"), &request);
        println!("{}", answer(told));
        std::io::stdout().flush().expect("somebody reads");
    }
    if driver.reset().is_err() {
        unreachable!("nothing in a reset is refused");
    }
}
