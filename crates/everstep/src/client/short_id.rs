//! Short ids: a run by the digits that its id begins or ends with.
//!
//! The beginning of an id is the time of its start, by which the store keeps runs in order: a run is
//! found by it with one read, however many runs there are. The end of an id is random. It tells runs
//! apart at a glance, so lists show it, but no index has it: the newest runs are searched, and no more
//! than a bounded number of them.

use std::{fmt, str::FromStr};

use super::{Client, ClientError};
use crate::{
    run_id::{RunId, RunNo},
    store::Filter,
};

/// How many digits a short id has at least: with fewer, too many runs would share it.
const DIGITS_MIN: usize = 8;

/// How many digits an id has.
const DIGITS: usize = 32;

/// With this many digits no two runs end in the same, so the search stops at the first match.
const DIGITS_UNIQUE: usize = 12;

/// How many runs are searched for the end of an id, and how many of them in one read.
const SEARCHED: usize = 100_000;
const PAGE: usize = 5_000;

/// How many matches are named.
const MATCHES: usize = 10;

/// Digits that the id of a run begins or ends with: at least 8 hexadecimal ones, with or without
/// hyphens, such as the last 12 that the dashboard shows.
///
/// ```
/// use everstep::ShortId;
///
/// let short: ShortId = "3C1D14F48FDD".parse()?;
/// assert_eq!(short.to_string(), "3c1d14f48fdd");
/// assert!("8fdd".parse::<ShortId>().is_err());
/// # Ok::<(), everstep::ParseShortIdError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ShortId(String);

/// A text that is not a short id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is not the id of a run; give the whole id, or at least {DIGITS_MIN} hexadecimal digits \
     of its beginning or its end"
)]
pub struct ParseShortIdError {
    text: String,
}

impl FromStr for ShortId {
    type Err = ParseShortIdError;

    fn from_str(text: &str) -> Result<ShortId, ParseShortIdError> {
        let digits: String = text.chars().filter(|it| *it != '-').collect();
        let is_id = digits.bytes().all(|it| it.is_ascii_hexdigit());
        if !is_id || !(DIGITS_MIN..DIGITS).contains(&digits.len()) {
            let text = text.to_owned();
            return Err(ParseShortIdError { text });
        }
        Ok(ShortId(digits.to_ascii_lowercase()))
    }
}

impl fmt::Display for ShortId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl ShortId {
    fn value(&self) -> u128 {
        // The digits were checked, and are fewer than those of an id.
        u128::from_str_radix(&self.0, 16).unwrap_or_default()
    }

    fn bits(&self) -> usize {
        4 * self.0.len()
    }

    fn ends(&self, run: RunId) -> bool {
        let mask = (1 << self.bits()) - 1;
        run.as_uuid().as_u128() & mask == self.value()
    }

    fn begins(&self, run: RunId) -> bool {
        let rest = 4 * DIGITS - self.bits();
        run.as_uuid().as_u128() >> rest == self.value()
    }

    /// The numbers of the runs whose id may begin with these digits, if there can be any.
    fn numbers(&self) -> Option<(RunNo, RunNo)> {
        let rest = 4 * DIGITS - self.bits();
        let least = self.value() << rest;
        let most = least | ((1 << rest) - 1);
        Some((RunId::no_of(least)?, RunId::no_of(most)?))
    }
}

/// The runs that were found, and how many were searched if there are more than that.
struct Found {
    runs: Vec<RunId>,
    searched: Option<usize>,
}

impl Client {
    /// The run whose id begins or ends with these digits.
    ///
    /// A beginning is found however old the run is; an end, among the newest 100 000 runs.
    ///
    /// # Errors
    ///
    /// [`ClientError::UnknownShortId`] if no run was found, [`ClientError::AmbiguousId`] if there are
    /// several, or if the store cannot be read.
    pub async fn run_by_short_id(&self, short: &ShortId) -> Result<RunId, ClientError> {
        let Found { runs, searched } = self.find_short(short, SEARCHED, PAGE).await?;
        match runs.as_slice() {
            [] => Err(ClientError::UnknownShortId { digits: short.0.clone(), searched }),
            [run] => Ok(*run),
            _ => Err(ClientError::AmbiguousId { digits: short.0.clone(), runs }),
        }
    }

    /// The runs whose id begins or ends with these digits, newest first, at most ten: as
    /// [`run_by_short_id`](Client::run_by_short_id) finds them.
    ///
    /// # Errors
    ///
    /// If the store cannot be read.
    pub async fn runs_by_short_id(&self, short: &ShortId) -> Result<Vec<RunId>, ClientError> {
        Ok(self.find_short(short, SEARCHED, PAGE).await?.runs)
    }

    async fn find_short(
        &self,
        short: &ShortId,
        searched_max: usize,
        page: usize,
    ) -> Result<Found, ClientError> {
        let runs = self.find_beginning(short).await?;
        if !runs.is_empty() {
            let searched = None;
            return Ok(Found { runs, searched });
        }
        let (mut runs, mut searched, mut after) = (Vec::new(), 0, None);
        loop {
            let ids = self.read(move |store| store.find(&Filter::default(), after, page)).await?;
            runs.extend(ids.iter().copied().filter(|run| short.ends(*run)));
            searched += ids.len();
            let is_enough = !runs.is_empty() && short.0.len() >= DIGITS_UNIQUE;
            if ids.len() < page || is_enough || runs.len() >= MATCHES {
                runs.truncate(MATCHES);
                let searched = None;
                return Ok(Found { runs, searched });
            }
            if searched >= searched_max {
                let searched = Some(searched);
                return Ok(Found { runs, searched });
            }
            after = ids.last().map(|run| run.no());
        }
    }

    /// The runs whose id begins with these digits.
    async fn find_beginning(&self, short: &ShortId) -> Result<Vec<RunId>, ClientError> {
        let Some((least, most)) = short.numbers() else {
            return Ok(Vec::new());
        };
        let after = RunNo(most.0 + 1);
        let ids =
            self.read(move |store| store.find(&Filter::default(), Some(after), MATCHES)).await?;
        let ids = ids.into_iter().take_while(|run| run.no() >= least);
        Ok(ids.filter(|run| short.begins(*run)).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::store::MemoryStore;

    async fn with_runs(number: usize) -> (Client, Vec<RunId>) {
        let client = Client::on(Arc::new(MemoryStore::new())).expect("a client");
        let mut runs = Vec::new();
        for _ in 0..number {
            let run = client.start_json("w", &1.into()).await.expect("a run");
            runs.push(run.id());
        }
        (client, runs)
    }

    fn digits(run: RunId) -> String {
        run.as_uuid().simple().to_string()
    }

    fn short(text: &str) -> ShortId {
        text.parse().expect("a short id")
    }

    #[test]
    fn a_short_id_is_a_part_of_an_id() {
        for text in ["3c1d14f48fdd", "01a1e31b-1d59-7590", "8241-3c1d14f48fdd", "DEADBEEF"] {
            assert!(text.parse::<ShortId>().is_ok(), "{text}");
        }
        let whole = "01a1e31b-1d59-7590-8241-3c1d14f48fdd";
        for text in ["", "1234567", "order-17", "nothex-nothex", whole] {
            assert!(text.parse::<ShortId>().is_err(), "{text}");
        }
    }

    #[tokio::test]
    async fn a_run_is_found_by_the_end_and_by_the_beginning_of_its_id() {
        let (client, runs) = with_runs(20).await;
        for run in &runs {
            let digits = digits(*run);
            let end = client.run_by_short_id(&short(&digits[20..])).await;
            assert_eq!(end.expect("by its last 12 digits"), *run);
            let beginning = client.run_by_short_id(&short(&digits[..20])).await;
            assert_eq!(beginning.expect("by its first 20 digits"), *run);
        }
    }

    #[tokio::test]
    async fn an_ambiguous_id_names_the_candidates() {
        let (client, runs) = with_runs(3).await;
        // All three were started within a minute or two.
        let digits = &digits(runs[0])[..8];
        match client.run_by_short_id(&short(digits)).await {
            Err(ClientError::AmbiguousId { runs: found, .. }) => {
                let mut found = found;
                found.sort();
                assert!(found.iter().all(|run| runs.contains(run)), "{found:?}");
            }
            // Unless the clock has come to the next 65 seconds in between.
            other => assert_eq!(other.expect("one of them"), runs[0]),
        }
        let error = ClientError::AmbiguousId { digits: "01a1e31b".to_owned(), runs: runs.clone() };
        let text = error.to_string();
        assert!(runs.iter().all(|it| text.contains(&it.to_string())), "{text}");
    }

    #[tokio::test]
    async fn the_search_for_an_end_is_bounded_and_says_so() {
        let (client, runs) = with_runs(9).await;
        let oldest = short(&digits(runs[0])[20..]);
        let found = client.find_short(&oldest, 6, 3).await.expect("a search");
        assert_eq!((found.runs.len(), found.searched), (0, Some(6)));
        let found = client.find_short(&oldest, 100, 3).await.expect("a search");
        assert_eq!(found.runs, runs[..1]);
        let error =
            |searched| ClientError::UnknownShortId { digits: "0123456789ab".to_owned(), searched };
        assert!(error(Some(6)).to_string().contains("newest 6 runs"));
        assert!(!error(None).to_string().contains("newest"));
        let nobody = client.run_by_short_id(&short("0123456789ab")).await;
        assert!(matches!(nobody, Err(ClientError::UnknownShortId { searched: None, .. })));
    }
}
