//! What `#[workflow]` writes: a unit struct, and how to name, call and configure it.

use proc_macro2::TokenStream;
use quote::{ToTokens, quote, quote_spanned};
use syn::{
    Attribute, GenericArgument, PathArguments, Type, ext::IdentExt, parse_quote, spanned::Spanned,
};

use crate::{
    arguments::{Arguments, OnFailure},
    biased::with_biased_selects,
    function::Function,
};

/// The whole expansion, errors included.
pub(crate) fn workflow(arguments: TokenStream, item: TokenStream) -> TokenStream {
    let (arguments, errors) = Arguments::read(arguments);
    let mut expanded = match syn::parse2::<Function>(item) {
        Ok(function) => write(&arguments, function),
        Err(error) => error.into_compile_error(),
    };
    if let Some(errors) = errors {
        expanded.extend(errors.into_compile_error());
    }
    expanded
}

fn write(arguments: &Arguments, function: Function) -> TokenStream {
    let attributes = Attributes::sort(&function.attributes);
    let items = [
        unit_struct(&function, &attributes),
        workflow_ref(arguments, &function),
        workflow_fn(arguments, &function),
        inherent_run(function, &attributes),
    ];
    let everywhere = &attributes.on_all;
    items.into_iter().map(|item| quote!(#(#everywhere)* #item)).collect()
}

/// The attributes of the function, by where they go.
struct Attributes {
    /// Whether the code is there at all, and what it is allowed.
    on_all: Vec<Attribute>,
    /// What is said of the name.
    on_struct: Vec<Attribute>,
    /// What is done to the code.
    on_run: Vec<Attribute>,
}

impl Attributes {
    fn sort(attributes: &[Attribute]) -> Self {
        let mut sorted = Self { on_all: Vec::new(), on_struct: Vec::new(), on_run: Vec::new() };
        for attribute in attributes {
            let place = match attribute.path().get_ident() {
                Some(name) if is_for_all(&name.to_string()) => &mut sorted.on_all,
                Some(name) if name == "doc" => &mut sorted.on_struct,
                Some(name) if name == "deprecated" => {
                    // What is written here uses the name that users are warned of.
                    sorted.on_all.push(parse_quote!(#[allow(deprecated)]));
                    &mut sorted.on_struct
                }
                _ => &mut sorted.on_run,
            };
            place.push(attribute.clone());
        }
        sorted
    }
}

/// `expect` is not among them: it would be disappointed wherever the lint does not fire.
fn is_for_all(name: &str) -> bool {
    matches!(name, "cfg" | "allow" | "warn" | "deny" | "forbid")
}

fn unit_struct(function: &Function, attributes: &Attributes) -> TokenStream {
    let name = &function.signature.ident;
    let visibility = &function.visibility;
    let on_struct = &attributes.on_struct;
    quote! {
        #(#on_struct)*
        #[allow(non_camel_case_types)]
        #[derive(
            ::core::clone::Clone,
            ::core::marker::Copy,
            ::core::fmt::Debug,
        )]
        #visibility struct #name;
    }
}

/// What a client needs: name, version, types and key.
fn workflow_ref(arguments: &Arguments, function: &Function) -> TokenStream {
    let ident = &function.signature.ident;
    let input = input_type(function);
    let output = output_type(&function.output);
    let name = match &arguments.name {
        Some(name) => name.to_token_stream(),
        None => ident.unraw().to_string().to_token_stream(),
    };
    let version = arguments.version();
    let default_key = arguments.key.as_ref().map(|key| {
        quote! {
            fn default_key(
                &self,
                input: &Self::Input,
            ) -> ::core::option::Option<::std::string::String> {
                ::core::option::Option::Some(::everstep::__private::key_of(input, #key))
            }
        }
    });
    quote! {
        impl ::everstep::WorkflowRef for #ident {
            type Input = #input;
            type Output = #output;
            fn name(&self) -> &'static str {
                #name
            }
            fn version(&self) -> u32 {
                #version
            }
            #default_key
        }
    }
}

/// What an engine needs as well: options and code.
fn workflow_fn(arguments: &Arguments, function: &Function) -> TokenStream {
    let ident = &function.signature.ident;
    let options = options(arguments, &input_type(function));
    // A mismatch is shown where the type was written, not at the attribute.
    let ctx = quote_spanned!(function.ctx.span()=> ctx);
    let (input, call) = match &function.input {
        Some(_) => (quote!(input), quote!(Self::run(#ctx, input))),
        None => (quote!(_input), quote!(Self::run(#ctx))),
    };
    let future = quote_spanned! {function.output.span()=>
        impl ::core::future::Future<Output = ::everstep::Result<Self::Output>> + 'static
    };
    quote! {
        impl ::everstep::WorkflowFn for #ident {
            fn options(&self) -> ::everstep::WorkflowOptions {
                #options
            }
            fn call(#ctx: ::everstep::Ctx, #input: Self::Input) -> #future {
                #call
            }
        }
    }
}

fn options(arguments: &Arguments, input: &Type) -> TokenStream {
    let mut options = quote!(::everstep::WorkflowOptions::new());
    let mut set = |call: TokenStream| options.extend(call);
    if let Some(accepts) = &arguments.accepts {
        let (first, last) = (accepts.first, accepts.last);
        set(quote!(.accepts(#first..=#last)));
    }
    if let Some(retry) = &arguments.retry {
        set(quote!(.retry(#retry)));
    }
    if let Some(deadline) = &arguments.deadline {
        set(quote!(.deadline(#deadline)));
    }
    if let Some(pool) = &arguments.pool {
        set(quote!(.pool(#pool)));
    }
    match arguments.on_failure {
        Some(OnFailure::Fail) => set(quote!(.on_failure(::everstep::OnFailure::Fail))),
        Some(OnFailure::Pause) => set(quote!(.on_failure(::everstep::OnFailure::Pause))),
        None => {}
    }
    if let Some(retain) = &arguments.retain {
        set(quote!(.retain(#retain)));
    }
    if let Some(describe) = &arguments.describe {
        set(quote!(.describe(#describe)));
    }
    if let Some(owner) = &arguments.owner {
        set(quote!(.owner(#owner)));
    }
    match (&arguments.limit, &arguments.limit_key) {
        (Some(limit), Some(key)) => set(quote! {
            .limit_key(#limit, |input: &#input| ::everstep::__private::key_of(input, #key))
        }),
        (Some(limit), None) => set(quote!(.limit(#limit))),
        (None, _) => {}
    }
    for (key, value) in &arguments.labels {
        set(quote!(.label(#key, #value)));
    }
    options
}

/// The code itself, with the signature that was written: only its name is another.
fn inherent_run(function: Function, attributes: &Attributes) -> TokenStream {
    let name = &function.signature.ident;
    let visibility = &function.visibility;
    let on_run = &attributes.on_run;
    let mut signature = function.signature.clone();
    signature.ident = syn::Ident::new("run", name.span());
    let doc =
        format!("The code of the workflow `{}`, run as part of the calling run.", name.unraw());
    let body = with_biased_selects(function.body.into());
    quote! {
        impl #name {
            #[doc = #doc]
            #(#on_run)*
            #visibility #signature #body
        }
    }
}

fn input_type(function: &Function) -> Type {
    match &function.input {
        Some(input) => input.clone(),
        None => parse_quote!(()),
    }
}

/// The type inside of the `Result`. It is taken as written where it can be seen, which makes for
/// better errors and docs; an alias is left to the type checker.
fn output_type(output: &Type) -> TokenStream {
    match result_argument(output) {
        Some(ok) => ok.to_token_stream(),
        None => quote_spanned! {output.span()=>
            <#output as ::everstep::__private::ResultOk>::Ok
        },
    }
}

fn result_argument(output: &Type) -> Option<&Type> {
    let Type::Path(path) = output else {
        return None;
    };
    let last = path.path.segments.last()?;
    let PathArguments::AngleBracketed(arguments) = &last.arguments else {
        return None;
    };
    match arguments.args.first() {
        Some(GenericArgument::Type(ok)) if last.ident == "Result" => Some(ok),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expand(arguments: &str, item: &str) -> String {
        let parse = |text: &str| text.parse().expect("tokens");
        workflow(parse(arguments), parse(item)).to_string()
    }

    /// How tokens are spaced when they are printed says nothing.
    #[track_caller]
    fn check_holds(expanded: &str, code: &str) {
        let bare = |text: &str| text.split_whitespace().collect::<String>();
        assert!(bare(expanded).contains(&bare(code)), "`{code}` is not in: {expanded}");
    }

    const PLAIN: &str = "async fn f(ctx: Ctx, n: u8) -> Result<u8> { Ok(n) }";

    #[test]
    fn visibility_and_attributes_go_where_they_belong() {
        let expanded = expand(
            "",
            "/// Does it.
             #[cfg(unix)]
             #[tracing::instrument]
             pub(crate) async fn f(ctx: Ctx, n: u8) -> Result<u8> { Ok(n) }",
        );
        check_holds(&expanded, "#[cfg(unix)] #[doc = \" Does it.\"] #[allow(");
        check_holds(&expanded, "pub(crate) struct f;");
        check_holds(
            &expanded,
            "#[tracing::instrument] pub(crate) async fn run(ctx: Ctx, n: u8) -> Result<u8> { Ok(n) }",
        );
        assert_eq!(expanded.matches("instrument").count(), 1);
        assert_eq!(expanded.matches("(unix)").count(), 4);
    }

    #[test]
    fn selects_of_the_body_become_biased() {
        let expanded =
            expand("", "async fn f(ctx: Ctx) -> Result<()> { select! { _ = a => Ok(()) } }");
        check_holds(&expanded, "{ select! { biased; _ = a => Ok(()) } }");
    }

    #[test]
    fn output_is_read_from_a_result_and_projected_from_an_alias() {
        for output in ["Result<u8>", "everstep::Result<u8>", "Result<u8, everstep::Error>"] {
            let expanded = expand("", &format!("async fn f(ctx: Ctx) -> {output} {{}}"));
            check_holds(&expanded, "type Output = u8;");
        }
        let expanded = expand("", "async fn f(ctx: Ctx) -> Answer {}");
        check_holds(&expanded, "type Output = <Answer as ::everstep::__private::ResultOk>::Ok;");
    }

    #[test]
    fn options_that_are_not_given_are_not_set() {
        check_holds(
            &expand("", PLAIN),
            "::everstep::WorkflowOptions { ::everstep::WorkflowOptions::new() }",
        );
        assert!(!expand("", PLAIN).contains("default_key"));
    }

    #[test]
    fn mistaken_argument_leaves_the_workflow_defined() {
        let expanded = expand("nam = \"g\", version = 3", PLAIN);
        assert!(expanded.contains("compile_error"));
        check_holds(&expanded, "struct f;");
        check_holds(&expanded, "fn version(&self) -> u32 { 3u32 }");
    }

    #[test]
    fn mistaken_function_gives_its_error_alone() {
        let expanded = expand("", "fn f(ctx: Ctx) -> Result<()> { Ok(()) }");
        assert_eq!(expanded.matches("compile_error").count(), 1);
        assert!(!expanded.contains("struct"));
    }
}
