//! Deletes, tags, forks and filters: what every store decides about them in the same way.

use super::tables::find;
use crate::{
    pool::PoolNo,
    run_id::RunNo,
    store::{
        Controlled, Delete, Deleted, Fork, Outcome, Refusal, Tagging,
        rows::{Head, Labels, RunChange, RunTables, Tombstone},
    },
    time::Timestamp,
};

/// How many tags a run may have.
pub(crate) const TAGS_MAX: usize = 100;

/// Why a run is not deleted; nothing if it is.
pub(crate) fn refuse_delete(
    head: &Head,
    finished_at: Option<Timestamp>,
    delete: &Delete,
) -> Option<Deleted> {
    let (run, status) = (head.id, head.status);
    if !status.is_terminal() {
        return Some(Deleted::Live { run, status });
    }
    let too_recent =
        delete.finished_before.is_some_and(|before| finished_at.is_some_and(|at| at >= before));
    too_recent.then_some(Deleted::TooRecent { run })
}

/// Deletes a run that has ended. What it leaves in other tables is swept.
pub(crate) fn delete<T: RunTables>(tables: &mut T, delete: &Delete) -> Result<Deleted, T::Error> {
    let Some(head) = find(tables, &delete.target)? else {
        return Ok(Deleted::Unknown);
    };
    let run = head.id.no();
    let Some(Labels { workflow, key, finished_at, tags }) = tables.labels(run)? else {
        return Ok(Deleted::Unknown);
    };
    if let Some(refused) = refuse_delete(&head, finished_at, delete) {
        return Ok(refused);
    }
    if let Some(key) = &key {
        // A run that has continued may have begun as another workflow.
        let begun_as = (head.generation == 1).then_some(&*workflow);
        let tombstone = Tombstone::of(head.id, delete, tables.now());
        tables.bury_key_if_of(run, begun_as, key, tombstone.as_ref())?;
    }
    tables.delete_run(run, &tags)?;
    Ok(Deleted::Done { run: head.id })
}

/// What became of a tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tagged {
    Changed,
    Unchanged,
    /// There are [`TAGS_MAX`] others.
    Full,
}

/// Replaces all tags of this name by one, or removes them.
pub(crate) fn set_tag(tags: &mut Vec<(String, String)>, name: &str, value: Option<&str>) -> Tagged {
    let mut of_name = tags.iter().filter(|(other, _)| other == name);
    let is_so = match value {
        None => of_name.next().is_none(),
        Some(value) => {
            of_name.next().is_some_and(|(_, other)| other == value) && of_name.next().is_none()
        }
    };
    if is_so {
        return Tagged::Unchanged;
    }
    let others = tags.iter().filter(|(other, _)| other != name).count();
    if value.is_some() && others >= TAGS_MAX {
        return Tagged::Full;
    }
    tags.retain(|(other, _)| other != name);
    tags.extend(value.map(|value| (name.to_owned(), value.to_owned())));
    Tagged::Changed
}

/// Sets or removes a tag of a run from outside.
pub(crate) fn tag<T: RunTables>(tables: &mut T, tagging: &Tagging) -> Result<Outcome, T::Error> {
    let Some(head) = find(tables, &tagging.target)? else {
        return Ok(Outcome::Controlled(Controlled::Unknown));
    };
    let (run, status) = (head.id, head.status);
    Ok(match write_tag(tables, run.no(), &tagging.name, tagging.value.as_deref())? {
        Tagged::Changed => {
            tables.write_run(&head, RunChange::Touch)?;
            Outcome::Controlled(Controlled::Done { run })
        }
        Tagged::Unchanged => Outcome::Controlled(Controlled::Already { run, status }),
        Tagged::Full => Outcome::Refused(Refusal::TagsFull { limit: TAGS_MAX }),
    })
}

/// Replaces all tags of this name in the row of a run by one, or removes them.
pub(crate) fn write_tag<T: RunTables>(
    tables: &mut T,
    run: RunNo,
    name: &str,
    value: Option<&str>,
) -> Result<Tagged, T::Error> {
    let before = tables.labels(run)?.map_or_else(Vec::new, |labels| labels.tags);
    let mut after = before.clone();
    let tagged = set_tag(&mut after, name, value);
    if tagged == Tagged::Changed {
        tables.write_tags(run, &before, &after)?;
    }
    Ok(tagged)
}

/// The row of a fork: as that of any new run, but its history has numbers already.
pub(crate) fn fork_head(fork: &Fork, pool: PoolNo, available_at: Timestamp) -> Head {
    Head { last_number: fork.last_number, ..Head::new(fork.new.id, pool, Some(available_at)) }
}

/// The least text that is greater than every text with this prefix; none if there is none.
///
/// Texts are compared by their UTF-8 bytes, which is the order of their characters.
#[cfg_attr(
    not(any(feature = "sqlite", feature = "postgres")),
    expect(dead_code, reason = "only SQL needs a range")
)]
pub(crate) fn prefix_end(prefix: &str) -> Option<String> {
    let mut chars: Vec<char> = prefix.chars().collect();
    while let Some(last) = chars.pop() {
        let next = match last {
            '\u{D7FF}' => Some('\u{E000}'),
            other => char::from_u32(other as u32 + 1),
        };
        if let Some(next) = next {
            chars.push(next);
            return Some(chars.into_iter().collect());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_replaces_all_of_its_name() {
        let tag = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let mut tags = vec![tag("a", "1"), tag("b", "1"), tag("a", "2")];
        assert_eq!(set_tag(&mut tags, "a", Some("2")), Tagged::Changed);
        assert_eq!(tags, [tag("b", "1"), tag("a", "2")]);
        assert_eq!(set_tag(&mut tags, "a", Some("2")), Tagged::Unchanged);
        assert_eq!(set_tag(&mut tags, "b", None), Tagged::Changed);
        assert_eq!(set_tag(&mut tags, "b", None), Tagged::Unchanged);
        assert_eq!(tags, [tag("a", "2")]);
    }

    #[test]
    fn a_run_has_only_so_many_tags() {
        let mut tags = Vec::new();
        for n in 0..TAGS_MAX {
            assert_eq!(set_tag(&mut tags, &n.to_string(), Some("x")), Tagged::Changed);
        }
        assert_eq!(set_tag(&mut tags, "one more", Some("x")), Tagged::Full);
        assert_eq!(set_tag(&mut tags, "7", Some("y")), Tagged::Changed);
        assert_eq!(tags.len(), TAGS_MAX);
    }

    #[cfg(feature = "sqlite")]
    #[test]
    fn a_prefix_ends_after_all_that_begin_with_it() {
        assert_eq!(prefix_end("order-").as_deref(), Some("order."));
        assert_eq!(prefix_end("a\u{10FFFF}").as_deref(), Some("b"));
        assert_eq!(prefix_end("\u{D7FF}").as_deref(), Some("\u{E000}"));
        assert_eq!(prefix_end("\u{10FFFF}"), None);
        assert_eq!(prefix_end(""), None);
    }
}
