//! Makes every `select!` of a body poll its branches in the order they are written.
//!
//! Left alone, `select!` starts at a random branch, so a replay could take another one than the
//! first execution took. This works on tokens: the calls inside of other macros, whose grammar
//! nobody knows, are found too.

use proc_macro2::{Group, Ident, Punct, Spacing, Span, TokenStream, TokenTree};

/// The body with `biased;` in each `select!` that does not have it already, at any depth.
pub(crate) fn with_biased_selects(body: TokenStream) -> TokenStream {
    rewrite(body).0
}

/// The tokens, and whether they differ from what was given.
fn rewrite(tokens: TokenStream) -> (TokenStream, bool) {
    let mut seen: Vec<TokenTree> = Vec::new();
    let mut changed = false;
    for token in tokens {
        let token = match token {
            TokenTree::Group(group) => {
                let select = select_before(&seen);
                let (group, differs) = rewrite_group(group, select.as_ref());
                changed |= differs;
                if let Some(Select::Futures { at }) = select {
                    let span = seen[at].span();
                    seen[at] = Ident::new("select_biased", span).into();
                    changed = true;
                }
                group.into()
            }
            other => other,
        };
        seen.push(token);
    }
    (seen.into_iter().collect(), changed)
}

/// A group that did not change is handed back as it was: a new one would lose the places of its
/// two delimiters.
fn rewrite_group(group: Group, select: Option<&Select>) -> (Group, bool) {
    let (mut inside, mut changed) = rewrite(group.stream());
    if let Some(Select::Tokio { span }) = select
        && !starts_biased(&inside)
    {
        let biased = [TokenTree::from(Ident::new("biased", *span)), semicolon(*span).into()];
        inside = biased.into_iter().chain(inside).collect();
        changed = true;
    }
    if !changed {
        return (group, false);
    }
    let mut rewritten = Group::new(group.delimiter(), inside);
    rewritten.set_span(group.span());
    (rewritten, true)
}

/// A call of a macro named `select`, whose branches come next.
enum Select {
    /// It understands `biased;`.
    Tokio { span: Span },
    /// It has a twin that is biased; its name stands at this index.
    Futures { at: usize },
}

/// Whether what has been seen ends in `select!`.
fn select_before(seen: &[TokenTree]) -> Option<Select> {
    let [path @ .., TokenTree::Ident(name), TokenTree::Punct(bang)] = seen else {
        return None;
    };
    if name != "select" || bang.as_char() != '!' {
        return None;
    }
    Some(if path_is_of_futures(path) {
        Select::Futures { at: path.len() }
    } else {
        Select::Tokio { span: name.span() }
    })
}

/// Whether the tokens end in `futures::` or `futures_util::`.
fn path_is_of_futures(tokens: &[TokenTree]) -> bool {
    let [.., TokenTree::Ident(krate), TokenTree::Punct(first), TokenTree::Punct(second)] = tokens
    else {
        return false;
    };
    (krate == "futures" || krate == "futures_util")
        && first.as_char() == ':'
        && second.as_char() == ':'
}

/// `biased` alone is not enough: it may be the pattern of the first branch.
fn starts_biased(branches: &TokenStream) -> bool {
    let mut tokens = branches.clone().into_iter();
    matches!(tokens.next(), Some(TokenTree::Ident(word)) if word == "biased")
        && matches!(tokens.next(), Some(TokenTree::Punct(mark)) if mark.as_char() == ';')
}

fn semicolon(span: Span) -> Punct {
    let mut semicolon = Punct::new(';', Spacing::Alone);
    semicolon.set_span(span);
    semicolon
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(body: &str, expected: &str) {
        let parse = |text: &str| text.parse::<TokenStream>().expect("tokens");
        let rewritten = with_biased_selects(parse(body));
        assert_eq!(rewritten.to_string(), parse(expected).to_string());
    }

    #[test]
    fn every_spelling_of_select_becomes_biased() {
        check("select! { a = f() => 1 }", "select! { biased; a = f() => 1 }");
        check("tokio::select! { a = f() => 1 }", "tokio::select! { biased; a = f() => 1 }");
        check("::tokio::select!(a = f() => 1);", "::tokio::select!(biased; a = f() => 1);");
        check(
            "let x = everstep::select![a = f() => 1];",
            "let x = everstep::select![biased; a = f() => 1];",
        );
    }

    #[test]
    fn futures_select_becomes_its_biased_twin() {
        check("futures::select! { a = f => 1 }", "futures::select_biased! { a = f => 1 }");
        check(
            "::futures_util::select! { a = f => select! { b = g => 2 } }",
            "::futures_util::select_biased! { a = f => select! { biased; b = g => 2 } }",
        );
    }

    #[test]
    fn select_that_is_biased_already_is_left_alone() {
        for body in [
            "select! { biased; a = f() => 1 }",
            "tokio::select! { biased; }",
            "futures::select_biased! { a = f() => 1 }",
        ] {
            check(body, body);
        }
    }

    #[test]
    fn branch_bound_to_the_name_biased_is_not_taken_for_the_keyword() {
        check("select! { biased = f() => biased }", "select! { biased; biased = f() => biased }");
    }

    #[test]
    fn selects_are_found_at_any_depth() {
        check(
            "ctx.map(async |x| { loop { select! { a = f() => { g(select! { b = h() => 2 }) } } } })",
            "ctx.map(async |x| { loop { select! { biased; a = f() => \
             { g(select! { biased; b = h() => 2 }) } } } })",
        );
        check(
            "vec![join!(async { tokio::select! { a = f() => 1 } })]",
            "vec![join!(async { tokio::select! { biased; a = f() => 1 } })]",
        );
        check(
            "select! { biased; a = f() => select! { b = g() => 2 } }",
            "select! { biased; a = f() => select! { biased; b = g() => 2 } }",
        );
    }

    #[test]
    fn other_uses_of_the_word_are_left_alone() {
        for body in [
            "let select = 1; if !select { f(select) }",
            "db.select(x); select != (y);",
            "sql::select(x)",
            "preselect! { a } selecting! { b }",
            "macro_rules! select { () => {} }",
            "println!(\"select! {{ a }}\")",
        ] {
            check(body, body);
        }
    }

    #[test]
    fn unchanged_groups_keep_their_delimiters_places() {
        let body: TokenStream = "f(1, { 2 })".parse().expect("tokens");
        let before = body.clone().into_iter().nth(1).expect("the group");
        let after = with_biased_selects(body).into_iter().nth(1);
        let (TokenTree::Group(before), Some(TokenTree::Group(after))) = (before, after) else {
            panic!("the second token is a group");
        };
        let place =
            |group: &Group| (group.span_open().byte_range(), group.span_close().byte_range());
        assert_eq!(place(&before), place(&after));
    }
}
