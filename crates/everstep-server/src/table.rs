//! The table of operations: each is said once, and becomes a route and a part of the OpenAPI document.

use std::{collections::BTreeMap, convert::Infallible};

use axum::{
    Router,
    extract::Request,
    handler::Handler,
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{MethodRouter, delete, get, post, put},
};
use schemars::{JsonSchema, SchemaGenerator, generate::SchemaSettings};
use serde_json::{Map, Value as Json, json};

use crate::{
    App,
    problem::Problem,
    security::{self, Role},
};

/// Where all operations are.
pub(crate) const BASE: &str = "/api/v1";

/// The verbs that are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Verb {
    Get,
    Post,
    Put,
    Delete,
}

impl Verb {
    fn word(self) -> &'static str {
        match self {
            Verb::Get => "get",
            Verb::Post => "post",
            Verb::Put => "put",
            Verb::Delete => "delete",
        }
    }

    fn route<H, T>(self, handler: H) -> MethodRouter<App, Infallible>
    where
        H: Handler<T, App>,
        T: 'static,
    {
        match self {
            Verb::Get => get(handler),
            Verb::Post => post(handler),
            Verb::Put => put(handler),
            Verb::Delete => delete(handler),
        }
    }
}

/// The operations so far.
pub(crate) struct Table {
    app: App,
    router: Router<App>,
    schemas: SchemaGenerator,
    paths: BTreeMap<String, Map<String, Json>>,
}

/// What is said about an operation, besides its handler.
pub(crate) struct Operation<'t> {
    table: &'t mut Table,
    verb: Verb,
    path: &'static str,
    said: Map<String, Json>,
    parameters: Vec<Json>,
}

impl Table {
    pub(crate) fn new(app: App) -> Table {
        let mut settings = SchemaSettings::draft2020_12();
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
        Table {
            app,
            router: Router::new(),
            schemas: settings.into_generator(),
            paths: BTreeMap::new(),
        }
    }

    /// An operation that needs this role. Its name is that of its handler in the document.
    pub(crate) fn add<H, T>(
        &mut self,
        verb: Verb,
        path: &'static str,
        role: Role,
        (name, summary): (&'static str, &'static str),
        handler: H,
    ) -> Operation<'_>
    where
        H: Handler<T, App>,
        T: 'static,
    {
        let app = self.app.clone();
        let guard = move |request: Request, next: Next| {
            let app = app.clone();
            async move { security::guarded(app, role, name, verb, request, next).await }
        };
        let route = verb.route(handler).layer(middleware::from_fn(guard));
        let full = format!("{BASE}{path}");
        self.router = std::mem::take(&mut self.router).route(&full, route);
        let tag = path.split('/').nth(1).unwrap_or("everstep");
        let mut said = Map::new();
        said.insert("operationId".to_owned(), json!(name));
        said.insert("summary".to_owned(), json!(summary));
        said.insert("tags".to_owned(), json!([tag]));
        said.insert("x-role".to_owned(), json!(role.word()));
        let problem = json!({
            "description": "What happened, to what, and what to do.",
            "content": {"application/problem+json": {"schema": self.schema_of::<Problem>()}},
        });
        said.insert("responses".to_owned(), json!({"default": problem}));
        let in_path = path.split('/').filter_map(|part| {
            let name = part.strip_prefix('{')?.strip_suffix('}')?;
            Some(json!({
                "name": name, "in": "path", "required": true, "schema": {"type": "string", "minLength": 1}
            }))
        });
        Operation {
            verb,
            path,
            said,
            parameters: in_path.collect(),
            table: self,
        }
    }

    fn schema_of<T: JsonSchema>(&mut self) -> Json {
        self.schemas.subschema_for::<T>().to_value()
    }

    /// The routes, and the document.
    pub(crate) fn finish(mut self) -> (Router<App>, Json) {
        let schemas = self.schemas.take_definitions(true);
        let document = json!({
            "openapi": "3.1.0",
            "info": {
                "title": "everstep",
                "version": env!("CARGO_PKG_VERSION"),
                "description": "Start, watch and operate durable runs.",
                "license": {"name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0"},
            },
            "servers": [{"url": "/"}],
            "security": [{}, {"bearer": []}, {"cookie": []}],
            "paths": self.paths,
            "components": {
                "schemas": schemas,
                "securitySchemes": {
                    "bearer": {"type": "http", "scheme": "bearer"},
                    "cookie": {"type": "apiKey", "in": "cookie", "name": security::COOKIE},
                },
            },
        });
        (self.router, document)
    }
}

impl Operation<'_> {
    /// What may stand in the query.
    pub(crate) fn query<T: JsonSchema>(mut self) -> Self {
        let whole = self.table.schemas.root_schema_for::<T>().to_value();
        let required: Vec<&str> = whole["required"]
            .as_array()
            .map(|names| names.iter().filter_map(Json::as_str).collect())
            .unwrap_or_default();
        for (name, schema) in whole["properties"].as_object().into_iter().flatten() {
            let is_list = schema["type"] == "array";
            let mut parameter = json!({
                "name": name, "in": "query", "required": required.contains(&name.as_str()),
                "schema": schema,
            });
            if let Some(said) = schema["description"].as_str() {
                parameter["description"] = json!(said);
            }
            if is_list {
                parameter["explode"] = json!(true);
            }
            self.parameters.push(parameter);
        }
        self
    }

    /// The body that it takes.
    pub(crate) fn body<T: JsonSchema>(mut self) -> Self {
        let schema = self.table.schema_of::<T>();
        let body = json!({"required": true, "content": {"application/json": {"schema": schema}}});
        self.said.insert("requestBody".to_owned(), body);
        self
    }

    /// That a header with this name makes it happen once, however often it is sent.
    pub(crate) fn once(mut self) -> Self {
        self.parameters.push(json!({
            "name": "idempotency-key", "in": "header", "required": false,
            "schema": {"type": "string", "minLength": 1, "maxLength": 200, "pattern": "^[!-~]+$"},
            "description": "However often it is sent with the same key, it happens once.",
        }));
        self
    }

    /// An answer with JSON.
    pub(crate) fn answers<T: JsonSchema>(self, status: u16, said: &str) -> Self {
        self.answers_as::<T>(status, said, "application/json")
    }

    /// An answer in events, each with this as its data.
    pub(crate) fn streams(mut self, said: &str) -> Self {
        let answer = json!({
            "description": said,
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
        });
        self.said["responses"]["200"] = answer;
        self
    }

    fn answers_as<T: JsonSchema>(mut self, status: u16, said: &str, kind: &str) -> Self {
        let schema = self.table.schema_of::<T>();
        let answer = json!({"description": said, "content": {kind: {"schema": schema}}});
        self.said["responses"][status.to_string()] = answer;
        self
    }

    /// An answer without a body.
    pub(crate) fn answers_nothing(mut self, status: u16, said: &str) -> Self {
        self.said["responses"][status.to_string()] = json!({"description": said});
        self
    }
}

impl Drop for Operation<'_> {
    fn drop(&mut self) {
        let mut said = std::mem::take(&mut self.said);
        if !self.parameters.is_empty() {
            said.insert("parameters".to_owned(), json!(self.parameters));
        }
        let path = format!("{BASE}{}", self.path);
        let of_path = self.table.paths.entry(path).or_default();
        of_path.insert(self.verb.word().to_owned(), Json::Object(said));
    }
}

/// What there is no route for.
pub(crate) async fn nowhere(request: Request) -> Response {
    let detail = format!(
        "there is nothing at `{}`; `{BASE}/openapi.json` says what there is",
        request.uri().path()
    );
    Problem::new(crate::problem::Kind::NotFound, detail).into_response()
}

/// A verb that there is no route for.
pub(crate) async fn no_such_verb(request: Request) -> Response {
    let detail = format!(
        "`{}` cannot be done at `{}`; `{BASE}/openapi.json` says what can",
        request.method(),
        request.uri().path()
    );
    Problem::new(crate::problem::Kind::MethodNotAllowed, detail).into_response()
}
