//! What stands in the parentheses of `#[workflow(..)]`.
//!
//! Every mistake is collected rather than ending the reading, so that a person sees all of them at
//! once, each at its place. What could be read is kept beside them.

use proc_macro2::TokenStream;
use syn::{
    Error, Expr, ExprRange, Ident, Lit, LitInt, LitStr, RangeLimits, Result, Token, parenthesized,
    parse::{End, ParseStream, Parser},
    punctuated::Punctuated,
};

/// The names of all arguments, for the error about one that is not among them.
const KNOWN: &str = "`name`, `version`, `accepts`, `key`, `retry`, `deadline`, `pool`, \
                     `on_failure`, `retain`, `describe`, `owner`, `limit`, `limit_key` and \
                     `labels(..)`";

/// The arguments that were given; what was not given is left to the engine's defaults.
#[derive(Default)]
pub(crate) struct Arguments {
    pub(crate) name: Option<LitStr>,
    pub(crate) version: Option<u32>,
    pub(crate) accepts: Option<Accepts>,
    pub(crate) key: Option<Expr>,
    pub(crate) retry: Option<Expr>,
    pub(crate) deadline: Option<Expr>,
    pub(crate) pool: Option<LitStr>,
    pub(crate) on_failure: Option<OnFailure>,
    pub(crate) retain: Option<Expr>,
    pub(crate) describe: Option<LitStr>,
    pub(crate) owner: Option<LitStr>,
    pub(crate) labels: Vec<(LitStr, LitStr)>,
    pub(crate) limit: Option<Expr>,
    pub(crate) limit_key: Option<Expr>,
}

/// The versions that the code can go on with, both ends included.
pub(crate) struct Accepts {
    pub(crate) first: u32,
    pub(crate) last: u32,
    /// As it was written, for an error to point at.
    written: Expr,
}

/// What becomes of a run that fails.
#[derive(Clone, Copy)]
pub(crate) enum OnFailure {
    Fail,
    Pause,
}

impl Arguments {
    /// The version that new runs get.
    pub(crate) fn version(&self) -> u32 {
        self.version.unwrap_or(1)
    }

    /// Reads the arguments, and what is wrong with them.
    pub(crate) fn read(tokens: TokenStream) -> (Self, Option<Error>) {
        let mut reader = Reader::default();
        let read = (|input: ParseStream<'_>| reader.read_all(input)).parse2(tokens);
        if let Err(error) = read {
            reader.note(error);
        }
        reader.check_version_is_accepted();
        reader.check_key_has_limit();
        (reader.arguments, reader.errors)
    }
}

/// The reading under way.
#[derive(Default)]
struct Reader {
    arguments: Arguments,
    /// The names that were met, to catch one that comes twice.
    met: Vec<Ident>,
    errors: Option<Error>,
}

impl Reader {
    fn note(&mut self, error: Error) {
        match &mut self.errors {
            Some(errors) => errors.combine(error),
            None => self.errors = Some(error),
        }
    }

    /// After a mistake it goes on behind the next comma.
    fn read_all(&mut self, input: ParseStream<'_>) -> Result<()> {
        while !input.is_empty() {
            if let Err(error) = self.read_one(input) {
                self.note(error);
                skip_value(input)?;
            }
            if input.is_empty() {
                break;
            }
            input.parse::<Token![,]>()?;
        }
        Ok(())
    }

    fn read_one(&mut self, input: ParseStream<'_>) -> Result<()> {
        let name: Ident = input.parse().map_err(|error| {
            Error::new(error.span(), "expected an argument such as `name = ..`")
        })?;
        let word = name.to_string();
        if self.met.contains(&name) {
            let message = format!("`{word}` is given twice");
            return Err(Error::new(name.span(), message));
        }
        self.met.push(name.clone());
        if word == "labels" {
            return self.read_labels(&name, input);
        }
        let Some(form) = form_of(&word) else {
            let message = format!("`{word}` is not an argument of `#[workflow]`; it takes {KNOWN}");
            return Err(Error::new(name.span(), message));
        };
        let has_value = input.peek(Token![=]) && !(input.peek2(End) || input.peek2(Token![,]));
        if !has_value {
            let message = format!("`{word}` needs a value, such as `{form}`");
            return Err(Error::new(name.span(), message));
        }
        input.parse::<Token![=]>()?;
        self.read_value(&word, input.parse()?)
    }

    fn read_value(&mut self, word: &str, value: Expr) -> Result<()> {
        let arguments = &mut self.arguments;
        match word {
            "name" => arguments.name = Some(workflow_name(&value)?),
            "version" => arguments.version = Some(version(&value)?),
            "accepts" => arguments.accepts = Some(accepts(value)?),
            "key" => arguments.key = Some(key(value)?),
            "retry" => arguments.retry = Some(value),
            "deadline" => arguments.deadline = Some(value),
            "pool" => arguments.pool = Some(text(word, &value)?),
            "on_failure" => arguments.on_failure = Some(on_failure(&value)?),
            "retain" => arguments.retain = Some(value),
            "describe" => arguments.describe = Some(text(word, &value)?),
            "owner" => arguments.owner = Some(text(word, &value)?),
            "limit" => arguments.limit = Some(value),
            "limit_key" => arguments.limit_key = Some(key(value)?),
            _ => unreachable!("`form_of` knows only these"),
        }
        Ok(())
    }

    fn read_labels(&mut self, name: &Ident, input: ParseStream<'_>) -> Result<()> {
        const FORM: &str = "labels are written `labels(\"key\" = \"value\", ..)`";
        if !input.peek(syn::token::Paren) {
            return Err(Error::new(name.span(), FORM));
        }
        let inside;
        parenthesized!(inside in input);
        // Taken out whole first: a mistake must not leave the rest behind for the caller to meet.
        let pairs = inside.parse::<TokenStream>()?;
        let pairs = (|input: ParseStream<'_>| Labels::parse_terminated_with(input, label))
            .parse2(pairs)
            .map_err(|error| Error::new(error.span(), FORM))?;
        for (key, value) in pairs {
            self.add_label(key, value)?;
        }
        Ok(())
    }

    fn add_label(&mut self, key: LitStr, value: LitStr) -> Result<()> {
        let labels = &mut self.arguments.labels;
        if labels.iter().any(|(other, _)| other.value() == key.value()) {
            let message = format!("the label `{}` is given twice", key.value());
            return Err(Error::new(key.span(), message));
        }
        labels.push((key, value));
        Ok(())
    }

    /// New runs of a version that the code then refuses would never start.
    fn check_key_has_limit(&mut self) {
        if let (None, Some(key)) = (&self.arguments.limit, &self.arguments.limit_key) {
            let message = "`limit_key` needs a limit: add `limit = ..`";
            let error = Error::new_spanned(key, message);
            self.note(error);
        }
    }

    fn check_version_is_accepted(&mut self) {
        let version = self.arguments.version();
        let Some(accepts) = &self.arguments.accepts else {
            return;
        };
        if !(accepts.first..=accepts.last).contains(&version) {
            let message = format!(
                "this workflow starts its runs with version {version}, so it must accept that \
                 version too"
            );
            let error = Error::new_spanned(&accepts.written, message);
            self.note(error);
        }
    }
}

type Labels = Punctuated<(LitStr, LitStr), Token![,]>;

fn label(input: ParseStream<'_>) -> Result<(LitStr, LitStr)> {
    let key = input.parse()?;
    input.parse::<Token![=]>()?;
    Ok((key, input.parse()?))
}

/// Goes on to the comma behind what could not be used. A value is read as one if it can be, since
/// it may have commas of its own.
fn skip_value(input: ParseStream<'_>) -> Result<()> {
    let ahead = input.fork();
    if ahead.parse::<Token![=]>().is_ok() && ahead.parse::<Expr>().is_ok() {
        input.parse::<Token![=]>()?;
        input.parse::<Expr>()?;
    }
    while !input.is_empty() && !input.peek(Token![,]) {
        input.parse::<proc_macro2::TokenTree>()?;
    }
    Ok(())
}

/// How an argument is written; nothing for a name that is not known.
fn form_of(word: &str) -> Option<&'static str> {
    Some(match word {
        "name" => "name = \"checkout\"",
        "version" => "version = 2",
        "accepts" => "accepts = 1..=2",
        "key" => "key = |input| input.number",
        "retry" => "retry = Retry::exponential(5)",
        "deadline" => "deadline = hours(48)",
        "pool" => "pool = \"gpu\"",
        "on_failure" => "on_failure = pause",
        "retain" => "retain = Retention::new().completed(days(30))",
        "describe" => "describe = \"what it does\"",
        "owner" => "owner = \"payments\"",
        "limit" => "limit = STRIPE",
        "limit_key" => "limit_key = |input| input.customer",
        _ => return None,
    })
}

/// Only literals: the macro compares them, and a reader should see them.
fn workflow_name(value: &Expr) -> Result<LitStr> {
    let name = text("name", value)?;
    if name.value().is_empty() {
        return Err(Error::new(name.span(), "the name of a workflow may not be empty"));
    }
    Ok(name)
}

fn text(word: &str, value: &Expr) -> Result<LitStr> {
    match literal(value) {
        Some(Lit::Str(text)) => Ok(text.clone()),
        _ => Err(Error::new_spanned(value, format!("`{word}` takes a string literal"))),
    }
}

fn version(value: &Expr) -> Result<u32> {
    let Some(Lit::Int(number)) = literal(value) else {
        return Err(Error::new_spanned(
            value,
            "a version is a whole number, written out, such as `2`",
        ));
    };
    version_number(number)
}

fn version_number(number: &LitInt) -> Result<u32> {
    match number.base10_parse::<u32>() {
        Ok(version @ 1..) => Ok(version),
        _ => Err(Error::new(number.span(), format!("versions go from 1 to {}", u32::MAX))),
    }
}

fn accepts(value: Expr) -> Result<Accepts> {
    let (first, last) = match &value {
        Expr::Range(range) => accepted_range(range)?,
        only => (version(only)?, version(only)?),
    };
    if first > last {
        return Err(Error::new_spanned(value, "no version is in this range"));
    }
    Ok(Accepts { first, last, written: value })
}

/// Both ends, included.
fn accepted_range(range: &ExprRange) -> Result<(u32, u32)> {
    let (Some(first), Some(last)) = (&range.start, &range.end) else {
        return Err(Error::new_spanned(
            range,
            "give both ends of the versions accepted, such as `1..=2`",
        ));
    };
    let last = match range.limits {
        RangeLimits::HalfOpen(_) => version(last)? - 1,
        RangeLimits::Closed(_) => version(last)?,
    };
    Ok((version(first)?, last))
}

/// A function of one argument: a closure, or the path of a function.
fn key(value: Expr) -> Result<Expr> {
    match &value {
        Expr::Closure(closure) if closure.inputs.len() == 1 => Ok(value),
        Expr::Path(_) => Ok(value),
        _ => Err(Error::new_spanned(
            &value,
            "`key` takes a function from the input to the key, such as `|input| input.number`",
        )),
    }
}

fn on_failure(value: &Expr) -> Result<OnFailure> {
    let word = match value {
        Expr::Path(path) => path.path.get_ident().map(Ident::to_string),
        _ => None,
    };
    match word.as_deref() {
        Some("fail") => Ok(OnFailure::Fail),
        Some("pause") => Ok(OnFailure::Pause),
        _ => Err(Error::new_spanned(value, "`on_failure` is `fail` or `pause`")),
    }
}

fn literal(value: &Expr) -> Option<&Lit> {
    match value {
        Expr::Lit(literal) => Some(&literal.lit),
        // A value that came through a `macro_rules!` is wrapped.
        Expr::Group(group) => literal(&group.expr),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads `arguments` and compares each error with the source it points at and its text.
    #[track_caller]
    fn check_errors(arguments: &str, expected: &[(&str, &str)]) {
        let tokens = arguments.parse().expect("tokens");
        let (_, errors) = Arguments::read(tokens);
        let found: Vec<_> = errors
            .into_iter()
            .flatten()
            .map(|error| {
                let source = error.span().source_text().unwrap_or_default();
                (source, error.to_string())
            })
            .collect();
        assert_eq!(found.len(), expected.len(), "errors: {found:?}");
        for ((source, message), (at, text)) in found.iter().zip(expected) {
            assert_eq!(source, at, "the place of: {message}");
            assert!(message.contains(text), "`{text}` is not in: {message}");
        }
    }

    fn read(arguments: &str) -> Arguments {
        let (read, errors) = Arguments::read(arguments.parse().expect("tokens"));
        assert!(errors.is_none(), "errors: {errors:?}");
        read
    }

    #[track_caller]
    fn check_accepts(arguments: &str, expected: (u32, u32)) {
        let accepts = read(arguments).accepts.expect("it is given");
        assert_eq!((accepts.first, accepts.last), expected);
    }

    #[test]
    fn accepted_versions_are_a_number_or_a_range() {
        check_accepts("accepts = 1", (1, 1));
        check_accepts("version = 3, accepts = 2..=3", (2, 3));
        check_accepts("accepts = 1..4, version = 3", (1, 3));
    }

    #[test]
    fn trailing_comma_and_no_arguments_are_fine() {
        assert_eq!(read("").version(), 1);
        assert_eq!(read("version = 7,").version(), 7);
        assert!(read("labels()").labels.is_empty());
    }

    #[test]
    fn unknown_argument_is_named_with_those_that_exist() {
        check_errors(
            "retri = 5",
            &[("retri", "`retri` is not an argument of `#[workflow]`; it takes `name`")],
        );
    }

    #[test]
    fn argument_without_a_value_is_shown_how() {
        let message = "`version` needs a value, such as `version = 2`";
        check_errors("version", &[("version", message)]);
        check_errors("version =", &[("version", message)]);
        check_errors("version = , pool = \"a\"", &[("version", message)]);
        check_errors("version(2)", &[("version", message)]);
    }

    #[test]
    fn argument_given_twice_is_refused_at_the_second() {
        check_errors("version = 1, version = 2", &[("version", "given twice")]);
        check_errors(
            "labels(\"a\" = \"b\", \"a\" = \"c\")",
            &[("\"a\"", "the label `a` is given twice")],
        );
    }

    #[test]
    fn value_of_the_wrong_kind_is_refused_at_the_value() {
        check_errors("name = checkout", &[("checkout", "takes a string literal")]);
        check_errors("name = \"\"", &[("\"\"", "may not be empty")]);
        check_errors("pool = 5", &[("5", "`pool` takes a string literal")]);
        check_errors("version = \"2\"", &[("\"2\"", "whole number")]);
        check_errors("version = 0", &[("0", "versions go from 1 to 4294967295")]);
        check_errors("version = 4294967296", &[("4294967296", "versions go")]);
        check_errors("on_failure = stop", &[("stop", "`fail` or `pause`")]);
        check_errors("on_failure = \"pause\"", &[("\"pause\"", "`fail` or `pause`")]);
        check_errors("key = \"order\"", &[("\"order\"", "takes a function")]);
        check_errors("key = |a, b| a", &[("|a, b| a", "takes a function")]);
    }

    #[test]
    fn accepted_range_must_hold_the_version() {
        check_errors("accepts = 1..", &[("1..", "give both ends")]);
        check_errors("accepts = ..=2", &[("..=2", "give both ends")]);
        check_errors("accepts = 3..=2", &[("3..=2", "no version is in this range")]);
        check_errors(
            "version = 3, accepts = 1..=2",
            &[("1..=2", "with version 3, so it must accept that version too")],
        );
    }

    #[test]
    fn labels_have_one_form() {
        for (arguments, at) in [
            ("labels = [(\"a\", \"b\")]", "labels"),
            ("labels(a = \"b\")", "a"),
            ("labels(\"a\" = 5)", "5"),
        ] {
            check_errors(arguments, &[(at, "labels are written `labels(")]);
        }
    }

    #[test]
    fn all_mistakes_are_reported_and_the_rest_is_read() {
        let arguments = "nam = |a, b| 1, version = 2, pool = 3, \"x\", owner = \"ada\"";
        check_errors(
            arguments,
            &[
                ("nam", "`nam` is not an argument"),
                ("3", "`pool` takes a string literal"),
                ("\"x\"", "expected an argument"),
            ],
        );
        let (read, _) = Arguments::read(arguments.parse().expect("tokens"));
        assert_eq!(read.version, Some(2));
        assert_eq!(read.owner.expect("it is given").value(), "ada");
    }
}
