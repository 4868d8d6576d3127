//! Which pauses end with a deploy.
//!
//! A run that was halted is paused with the [`Halt`](super::Halt) as its reason, in words, and the
//! row has nothing else to tell it by. Every halt ends with what to do about it, and that ending is
//! ours alone, whatever names and errors of the user stand before it. So the ending tells.

/// How the reasons end that other code can mend. Rows have them: an ending that changes stays in
/// this list.
const ENDINGS: &[&str] = &[
    "; deploy code that matches, or gate the change with `ctx.version`",
    ". Deploy code that matches, or gate the change with `ctx.version`",
    "gate the change with `ctx.version`, or name what is gone with `ctx.removed`",
    "gate the change with `ctx.version`, or name it with `ctx.removed`",
    "; deploy code whose types fit what is stored",
    "use `ctx.sleep`, `ctx.listen` and the other operations",
    "; await only operations of `ctx`",
    "a `ctx.scope`, or a run of its own with `ctx.child`",
    "and the code has no rollback for it; deploy code that has it",
    "; start an engine with the codec and the keys that it was written with",
    "; start an engine whose codec can",
    // As it was written by 0.1.0 before runs went on by themselves.
    "and the code has no rollback for it; deploy code that has it, then resume the run",
];

/// Whether a run that is paused for this reason may go on with other code: an engine that starts
/// tries it against the code that it has.
pub(crate) fn is_mended_by_deploy(reason: &str) -> bool {
    ENDINGS.iter().any(|ending| reason.ends_with(ending))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{codec::DecodeError, history::EntryKind, run::Halt, store::rules};

    #[test]
    fn every_halt_is_told_by_its_words() {
        let at = || "a step".to_owned();
        let error = DecodeError::Trailing { at: 1, extra: 2 };
        let by_deploy = [
            Halt::AnotherKind { at: at(), recorded: EntryKind::Step, code: EntryKind::Sleep },
            Halt::Moved { at: at(), recorded: 1, code: 2 },
            Halt::NotTaken { number: 1, at: at(), why: "does not make", open: "none".to_owned() },
            Halt::EndedEarly { number: 1, at: at() },
            Halt::Unclaimed { at: at(), kind: EntryKind::Step },
            Halt::Undecodable { what: at(), error },
            Halt::ForeignAwait { hint: String::new() },
            Halt::NeverQuiet,
            Halt::InsideBody { body: at(), made: at() },
            Halt::RollbackMissing { at: at() },
            Halt::Sealed { what: at(), error: DecodeError::NoCodec { id: at() } },
            Halt::Unsealable { what: at(), error: at() },
        ];
        for halt in by_deploy {
            assert!(is_mended_by_deploy(&halt.to_string()), "{halt}");
        }
        // What a user's error says does not count.
        let error = Halt::NeverQuiet.to_string();
        let otherwise = [
            Halt::CrashLoop { at: at(), deaths: 10 },
            Halt::RollbackFailed { at: at(), attempts: 3, error: error.clone() },
            Halt::OnFailure { error },
        ];
        for halt in otherwise {
            assert!(!is_mended_by_deploy(&halt.to_string()), "{halt}");
        }
        assert!(!is_mended_by_deploy(rules::PAUSED_BY_REQUEST));
    }
}
