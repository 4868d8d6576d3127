//! The function that `#[workflow]` stands on, checked.

use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;
use syn::{
    Attribute, Error, FnArg, PatType, Result, ReturnType, Safety, Signature, Type, Visibility,
    parse::{Parse, ParseStream},
};

/// The shape that every refusal points to.
const SHAPE: &str = "a workflow is `async fn name(ctx: Ctx, input: Input) -> Result<Output>`";

/// An `async fn` of the right shape. The body stays tokens: nothing here has to understand it.
pub(crate) struct Function {
    pub(crate) attributes: Vec<Attribute>,
    pub(crate) visibility: Visibility,
    pub(crate) signature: Signature,
    pub(crate) body: TokenTree,
    /// The type of the first argument, as it was written.
    pub(crate) ctx: Type,
    /// The type of the second argument, if there is one.
    pub(crate) input: Option<Type>,
    pub(crate) output: Type,
}

impl Parse for Function {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let attributes = input.call(Attribute::parse_outer)?;
        let visibility = input.parse()?;
        let signature: Signature =
            input.parse().map_err(|error| Error::new(error.span(), SHAPE))?;
        let body = input.parse()?;
        check_kind(&signature)?;
        let (ctx, argument) = arguments(&signature)?;
        check_owned(&ctx.ty, "a workflow takes its `Ctx` by value")?;
        if let Some(argument) = argument {
            check_owned(
                &argument.ty,
                "the input of a workflow is stored, so it must be of an owned, named type",
            )?;
        }
        Ok(Self {
            ctx: (*ctx.ty).clone(),
            input: argument.map(|argument| (*argument.ty).clone()),
            output: output(&signature)?,
            attributes,
            visibility,
            signature,
            body,
        })
    }
}

/// An `async fn` and nothing more.
fn check_kind(signature: &Signature) -> Result<()> {
    let refuse = |what: &dyn ToTokens, why: &str| Err(Error::new_spanned(what, why));
    if let Some(constness) = &signature.constness {
        return refuse(constness, "a workflow cannot be `const`");
    }
    if !matches!(signature.safety, Safety::Default) {
        return Err(Error::new(signature.fn_token.span, "a workflow must be safe to call"));
    }
    if let Some(abi) = &signature.abi {
        return refuse(abi, "a workflow cannot be `extern`");
    }
    if signature.asyncness.is_none() {
        return refuse(&signature.fn_token, "a workflow must be an `async fn`");
    }
    if !signature.generics.params.is_empty() {
        return refuse(
            &signature.generics,
            "a workflow cannot be generic: its input and output are stored under one name; make \
             one workflow for each type, and let them call a generic function",
        );
    }
    if let Some(clause) = &signature.generics.where_clause {
        return refuse(clause, "a workflow cannot have a `where` clause");
    }
    Ok(())
}

/// The `Ctx` and, if there is one, the input.
fn arguments(signature: &Signature) -> Result<(&PatType, Option<&PatType>)> {
    let mut typed = Vec::new();
    for argument in &signature.inputs {
        match argument {
            FnArg::Receiver(receiver) => {
                let why = "a workflow cannot take `self`; give it what it needs with \
                           `Engine::provide` and read it with `ctx.get::<T>()`";
                return Err(Error::new(receiver.self_token.span, why));
            }
            FnArg::Typed(argument) => typed.push(argument),
        }
    }
    match typed[..] {
        [ctx] => Ok((ctx, None)),
        [ctx, input] => Ok((ctx, Some(input))),
        [] => Err(Error::new(
            signature.paren_token.span.join(),
            format!("the `Ctx` is missing: {SHAPE}"),
        )),
        [_, _, third, ..] => Err(Error::new_spanned(
            third,
            "a workflow takes one input; put several into a struct or a tuple",
        )),
    }
}

/// A type that can stand in an associated type: nothing borrowed, nothing left open.
fn check_owned(ty: &Type, why: &str) -> Result<()> {
    if contains_borrow(ty.to_token_stream()) {
        return Err(Error::new_spanned(ty, why));
    }
    Ok(())
}

fn contains_borrow(tokens: TokenStream) -> bool {
    tokens.into_iter().any(|token| match token {
        TokenTree::Punct(mark) => mark.as_char() == '&',
        TokenTree::Ident(word) => word == "impl" || word == "_",
        TokenTree::Group(group) => contains_borrow(group.stream()),
        TokenTree::Literal(_) => false,
    })
}

fn output(signature: &Signature) -> Result<Type> {
    match &signature.output {
        ReturnType::Default => Err(Error::new(
            signature.paren_token.span.close(),
            "a workflow returns `everstep::Result<..>`; one that gives nothing returns `Result<()>`",
        )),
        ReturnType::Type(_, output) => {
            check_owned(
                output,
                "the output of a workflow is stored, so it must be of an owned, named type",
            )?;
            Ok((**output).clone())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_refused(item: &str, at: &str, text: &str) {
        let tokens: TokenStream = item.parse().expect("tokens");
        let error = match syn::parse2::<Function>(tokens) {
            Ok(_) => panic!("it was taken: {item}"),
            Err(error) => error,
        };
        let message = error.to_string();
        assert!(message.contains(text), "`{text}` is not in: {message}");
        let source = error.span().source_text().unwrap_or_default();
        assert_eq!(source, at, "the place of: {message}");
    }

    #[test]
    fn only_a_plain_async_fn_can_be_a_workflow() {
        check_refused("fn f(ctx: Ctx) -> Result<()> {}", "fn", "`async fn`");
        check_refused("struct S;", "struct", "a workflow is `async fn");
        check_refused("async unsafe fn f(ctx: Ctx) -> Result<()> {}", "fn", "safe to call");
        check_refused(
            "async extern \"C\" fn f(ctx: Ctx) -> Result<()> {}",
            "extern \"C\"",
            "`extern`",
        );
    }

    #[test]
    fn generic_workflow_is_refused() {
        check_refused(
            "async fn f<T>(ctx: Ctx, input: T) -> Result<()> {}",
            "<T>",
            "cannot be generic",
        );
        check_refused(
            "async fn f(ctx: Ctx) -> Result<()> where u8: Copy {}",
            "where u8: Copy",
            "`where` clause",
        );
    }

    #[test]
    fn arguments_are_the_ctx_and_one_owned_input() {
        check_refused("async fn f() -> Result<()> {}", "()", "the `Ctx` is missing");
        check_refused(
            "async fn f(ctx: Ctx, a: u8, b: u8) -> Result<()> {}",
            "b: u8",
            "takes one input",
        );
        check_refused("async fn f(&self) -> Result<()> {}", "self", "`ctx.get::<T>()`");
        check_refused("async fn f(ctx: &Ctx) -> Result<()> {}", "&Ctx", "by value");
        check_refused(
            "async fn f(ctx: Ctx, name: &str) -> Result<()> {}",
            "&str",
            "must be of an owned, named type",
        );
        check_refused(
            "async fn f(ctx: Ctx, names: Vec<(u8, &str)>) -> Result<()> {}",
            "Vec<(u8, &str)>",
            "must be of an owned, named type",
        );
        check_refused(
            "async fn f(ctx: Ctx, name: impl Display) -> Result<()> {}",
            "impl Display",
            "must be of an owned, named type",
        );
    }

    #[test]
    fn output_is_a_result_of_an_owned_type() {
        check_refused("async fn f(ctx: Ctx) {}", ")", "returns `everstep::Result<..>`");
        check_refused(
            "async fn f(ctx: Ctx) -> Result<&'static str> {}",
            "Result<&'static str>",
            "the output of a workflow is stored",
        );
    }
}
