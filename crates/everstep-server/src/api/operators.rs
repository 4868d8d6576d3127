//! What admins look at and change: the audit log, and the tokens of the API.

use axum::{Json as Answer, extract::State, http::StatusCode};
use everstep::Role::Admin;

use super::{Answered, bad, missing, page_size};
use crate::{
    App,
    extract::{Body, Names, Query},
    problem::Problem,
    shapes::{
        history::PageQuery,
        operators::{AuditList, AuditShape, MakeToken, NewToken, TokenList, TokenShape},
    },
    table::{
        Table,
        Verb::{Delete, Get, Post},
    },
};

pub(super) fn add(table: &mut Table) {
    let name = ("list_audit", "Who has changed what, the newest first");
    table
        .add(Get, "/audit", Admin, name, audit)
        .query::<PageQuery>()
        .answers::<AuditList>(200, "A page of the audit log.");
    let name = ("list_tokens", "The tokens of the store, by name");
    table
        .add(Get, "/tokens", Admin, name, tokens)
        .answers::<TokenList>(200, "All of them, without what was handed out.");
    let name = ("create_token", "Makes a token");
    table
        .add(Post, "/tokens", Admin, name, create)
        .body::<MakeToken>()
        .answers::<NewToken>(201, "The token, with what is to be handed out: it is shown once.");
    let name = ("revoke_token", "Makes a token worthless, by its name");
    table
        .add(Delete, "/tokens/{token}", Admin, name, revoke)
        .answers_nothing(204, "It allows nothing any more.");
}

async fn audit(State(app): State<App>, Query(query): Query<PageQuery>) -> Answered<AuditList> {
    let limit = page_size(query.limit)?;
    let cursor = query.cursor.map(|cursor| {
        let number = cursor.parse::<u64>();
        number.map_err(|_| bad(format!("`{cursor}` is no cursor; use `next` of the page before")))
    });
    let page = app.client.audit().list(cursor.transpose()?, limit).await?;
    let entries = page.entries.into_iter();
    Ok(Answer(AuditList {
        entries: entries.map(AuditShape::from).collect(),
        next: page.next.map(|no| no.to_string()),
    }))
}

async fn tokens(State(app): State<App>) -> Answered<TokenList> {
    let tokens = app.client.tokens().list().await?.into_iter();
    Ok(Answer(TokenList { tokens: tokens.map(TokenShape::from).collect() }))
}

async fn create(
    State(app): State<App>,
    Body(said): Body<MakeToken>,
) -> Result<(StatusCode, Answer<NewToken>), Problem> {
    let (info, secret) = app.client.tokens().create(said.name, said.role.into()).await?;
    app.security.forget_stored();
    let new = NewToken { info: TokenShape::from(info), token: secret.into_string() };
    Ok((StatusCode::CREATED, Answer(new)))
}

async fn revoke(State(app): State<App>, Names(name): Names<String>) -> Result<StatusCode, Problem> {
    let was_there = app.client.tokens().revoke(name.clone()).await?;
    app.security.forget_stored();
    match was_there {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(missing(format!("there is no token with the name `{name}`"))),
    }
}
