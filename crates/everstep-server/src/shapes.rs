//! What goes over the wire. Every shape is said once here, and becomes JSON and a part of the OpenAPI
//! document; nothing of the engine's own types is serialized by accident.

use std::{borrow::Cow, time::Duration};

use everstep::{Timestamp, days};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

pub(crate) mod around;
pub(crate) mod cluster;
pub(crate) mod history;
pub(crate) mod operators;
pub(crate) mod overview;
pub(crate) mod queues;
pub(crate) mod run;
pub(crate) mod schedules;
pub(crate) mod session;
pub(crate) mod why;

/// An instant, as RFC 3339 in UTC with milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Time(pub(crate) Timestamp);

impl From<Timestamp> for Time {
    fn from(at: Timestamp) -> Time {
        Time(at)
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Time, D::Error> {
        let text = Cow::<'_, str>::deserialize(from)?;
        text.parse().map(Time).map_err(de::Error::custom)
    }
}

impl JsonSchema for Time {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Time".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "format": "date-time"})
    }
}

/// How long a duration in a request may be.
pub(crate) const LONGEST: Duration = days(366_000);

/// A duration in milliseconds, of a length that there is.
pub(crate) fn millis(ms: u64) -> Duration {
    Duration::from_millis(ms).min(LONGEST)
}

/// A duration as milliseconds.
pub(crate) fn as_millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A name and a value that a run can be found by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Tag {
    /// Its name.
    pub(crate) name: String,
    /// Its value.
    pub(crate) value: String,
}

pub(crate) fn tags(pairs: Vec<(String, String)>) -> Vec<Tag> {
    let tags = pairs.into_iter().map(|(name, value)| Tag { name, value });
    tags.collect()
}
