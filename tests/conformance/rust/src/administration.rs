//! The verbs of the admin client, and those that any client of librdkafka answers from its metadata.

use futures::executor::block_on;
use rdkafka::admin::{
    AdminClient, AdminOptions, AlterConfig, NewPartitions, NewTopic, ResourceSpecifier, TopicReplication,
};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::{Offset, TopicPartitionList};
use serde_json::{json, Map, Value};

use crate::{text, text_or, Failure, Told, WAIT};

pub struct Administration {
    settings: ClientConfig,
    admin: AdminClient<DefaultClientContext>,
}

impl Administration {
    pub fn new(settings: &ClientConfig) -> Administration {
        Administration { settings: settings.clone(), admin: settings.create().expect("an admin client") }
    }

    pub fn run(&self, verb: &str, request: &Value) -> Told {
        match verb {
            "create_topic" => self.create_topic(request),
            "delete_topic" => {
                let outcomes = block_on(self.admin.delete_topics(&[text(request, "topic")], &AdminOptions::new()))?;
                outcome(outcomes)
            }
            "create_partitions" => {
                let count = request["count"].as_u64().expect("a count") as usize;
                let wanted = NewPartitions::new(text(request, "topic"), count);
                outcome(block_on(self.admin.create_partitions(&[wanted], &AdminOptions::new()))?)
            }
            "delete_group" => {
                outcome(block_on(self.admin.delete_groups(&[text(request, "group")], &AdminOptions::new()))?)
            }
            "describe_cluster" => Err(Failure::Unsupported("rdkafka does not expose the controller")),
            "list_topics" | "describe_topic" => self.metadata(verb, request),
            "cluster_id" => Ok(json!({"id": self.admin.inner().fetch_cluster_id(WAIT)})),
            "describe_configs" => self.describe_configs(request),
            "alter_configs" => self.alter_configs(request),
            "delete_records" => self.delete_records(request),
            "list_offsets" => self.list_offsets(request),
            "list_groups" | "describe_group" => self.groups(verb, request),
            "committed" => self.committed(request),
            _ => Err(Failure::Unsupported("rdkafka's admin client has no such call")),
        }
    }

    fn create_topic(&self, request: &Value) -> Told {
        let count = request["count"].as_i64().expect("a count") as i32;
        let mut topic = NewTopic::new(text(request, "topic"), count, TopicReplication::Fixed(-1));
        for (name, value) in request["configs"].as_object().expect("configs") {
            topic = topic.set(name, value.as_str().expect("a value"));
        }
        outcome(block_on(self.admin.create_topics(&[topic], &AdminOptions::new()))?)
    }

    fn metadata(&self, verb: &str, request: &Value) -> Told {
        let found = self.admin.inner().fetch_metadata(request["topic"].as_str(), WAIT)?;
        Ok(match verb {
            "list_topics" => json!({"topics": found.topics().iter().map(|one| one.name()).collect::<Vec<_>>()}),
            _ => json!({"partitions": found.topics()[0].partitions().len()}),
        })
    }

    fn describe_configs(&self, request: &Value) -> Told {
        let resource = [resource(request)];
        let described = block_on(self.admin.describe_configs(&resource, &AdminOptions::new()))?;
        let mut configs = Map::new();
        for found in described {
            for entry in found.map_err(Failure::Coded)?.entries {
                configs.insert(entry.name, entry.value.into());
            }
        }
        Ok(json!({"configs": configs}))
    }

    /// AlterConfigs replaces all that was set, so what is to be deleted is left out.
    fn alter_configs(&self, request: &Value) -> Told {
        let mut wanted = AlterConfig::new(resource(request));
        for (name, value) in request["set"].as_object().expect("set") {
            wanted = wanted.set(name, value.as_str().expect("a value"));
        }
        let outcomes = block_on(self.admin.alter_configs(&[wanted], &AdminOptions::new()))?;
        outcomes.into_iter().try_for_each(|one| one.map(drop).map_err(|(_, code)| Failure::Coded(code)))?;
        Ok(json!({}))
    }

    fn delete_records(&self, request: &Value) -> Told {
        let before = Offset::Offset(request["before"].as_i64().expect("an offset"));
        let gone = place(request, before)?;
        let deleted = block_on(self.admin.delete_records(&gone, &AdminOptions::new()))?;
        deleted.elements().iter().try_for_each(|one| one.error())?;
        Ok(json!({}))
    }

    fn list_offsets(&self, request: &Value) -> Told {
        let (topic, partition) = (text(request, "topic"), request["partition"].as_i64().expect("a partition") as i32);
        if text_or(request, "isolation", "") == "read_committed" {
            return Err(Failure::Unsupported("watermarks always use read_uncommitted"));
        }
        let consumer: BaseConsumer = self.settings.clone().set("group.id", "unused").create()?;
        if text(request, "at") == "time" {
            let time = Offset::Offset(request["time"].as_i64().expect("a time"));
            let found = consumer.offsets_for_times(place(request, time)?, WAIT)?;
            let offset = match found.elements()[0].offset() {
                Offset::Offset(offset) => offset,
                _ => -1, // librdkafka: the end
            };
            return Ok(json!({"offset": offset}));
        }
        let (low, high) = consumer.fetch_watermarks(topic, partition, WAIT)?;
        Ok(json!({"offset": if text(request, "at") == "earliest" { low } else { high }}))
    }

    fn groups(&self, verb: &str, request: &Value) -> Told {
        let listed = self.admin.inner().fetch_group_list(request["group"].as_str(), WAIT)?;
        if verb == "list_groups" {
            return Ok(json!({"groups": listed.groups().iter().map(|one| one.name()).collect::<Vec<_>>()}));
        }
        let group = &listed.groups()[0];
        Ok(json!({"state": group.state(), "members": group.members().len()}))
    }

    fn committed(&self, request: &Value) -> Told {
        let topic = text(request, "topic");
        let consumer: BaseConsumer = self.settings.clone().set("group.id", text(request, "group")).create()?;
        let mut wanted = TopicPartitionList::new();
        let found = consumer.fetch_metadata(Some(topic), WAIT)?;
        for partition in found.topics()[0].partitions() {
            wanted.add_partition(topic, partition.id());
        }
        let mut offsets = Map::new();
        for one in consumer.committed_offsets(wanted, WAIT)?.elements() {
            if let Offset::Offset(offset) = one.offset() {
                offsets.insert(one.partition().to_string(), offset.into());
            }
        }
        Ok(json!({"offsets": offsets}))
    }
}

fn place(request: &Value, offset: Offset) -> Result<TopicPartitionList, Failure> {
    let mut places = TopicPartitionList::new();
    let partition = request["partition"].as_i64().expect("a partition") as i32;
    places.add_partition_offset(text(request, "topic"), partition, offset)?;
    Ok(places)
}

fn resource(request: &Value) -> ResourceSpecifier<'_> {
    match text(request, "kind") {
        "topic" => ResourceSpecifier::Topic(text(request, "name")),
        _ => ResourceSpecifier::Broker(text(request, "name").parse().expect("a broker")),
    }
}

/// What became of the one thing that was asked for.
fn outcome(outcomes: Vec<Result<String, (String, rdkafka::error::RDKafkaErrorCode)>>) -> Told {
    outcomes.into_iter().try_for_each(|one| one.map(drop).map_err(|(_, code)| Failure::Coded(code)))?;
    Ok(json!({}))
}
