//! The table of operations: each is said once, and becomes a route and a part of the OpenAPI document.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    sync::{Arc, OnceLock},
};

use axum::{
    Router,
    extract::Request,
    handler::Handler,
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{MethodRouter, delete, get, post, put},
};
use everstep::Role;
use schemars::{JsonSchema, SchemaGenerator, generate::SchemaSettings};
use serde_json::{Map, Value as Json, json};

use crate::{
    App,
    guard::{self, Declared, Guarded},
    once,
    problem::Problem,
    security,
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
    /// The statuses of the problems that are likely.
    problems: Vec<u16>,
    declared: Arc<OnceLock<Declared>>,
    is_stream: bool,
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

    /// An operation that needs this role, or none at all. Its name is that of its handler in the
    /// document.
    pub(crate) fn add<H, T>(
        &mut self,
        verb: Verb,
        path: &'static str,
        role: impl Into<Option<Role>>,
        (name, summary): (&'static str, &'static str),
        handler: H,
    ) -> Operation<'_>
    where
        H: Handler<T, App>,
        T: 'static,
    {
        let role = role.into();
        let app = self.app.clone();
        let declared = Arc::new(OnceLock::new());
        let operation = Guarded { verb, path, name, role, declared: declared.clone() };
        let guard = move |request: Request, next: Next| {
            let (app, operation) = (app.clone(), operation.clone());
            async move { guard::guarded(app, operation, request, next).await }
        };
        let route = verb.route(handler).route_layer(middleware::from_fn(guard));
        let full = format!("{BASE}{path}");
        self.router = std::mem::take(&mut self.router).route(&full, route);
        let tag = path.split('/').nth(1).unwrap_or("everstep");
        let mut said = Map::new();
        said.insert("operationId".to_owned(), json!(name));
        said.insert("summary".to_owned(), json!(summary));
        said.insert("tags".to_owned(), json!([tag]));
        said.insert("x-role".to_owned(), json!(role.map(Role::as_str)));
        said.insert("responses".to_owned(), json!({}));
        if role.is_none() {
            said.insert("security".to_owned(), json!([]));
        }
        let names = path.split('/').filter_map(|part| {
            let name = part.strip_prefix('{')?.strip_suffix('}')?;
            let mut parameter = json!({
                "name": name, "in": "path", "required": true, "schema": path_schema(name)
            });
            if name == "run" {
                let said = "The id of the run, or at least 8 digits of its beginning or its end.";
                parameter["description"] = json!(said);
            }
            Some(parameter)
        });
        let parameters: Vec<Json> = names.collect();
        let mut problems = vec![400, 429, 503, 504];
        if role.is_some() {
            problems.extend([401, 403]);
        }
        if !parameters.is_empty() {
            problems.push(404);
        }
        if verb != Verb::Get {
            problems.extend([403, 408, 409]);
        }
        Operation {
            declared,
            verb,
            path,
            said,
            parameters,
            problems,
            is_stream: false,
            table: self,
        }
    }

    fn schema_of<T: JsonSchema>(&mut self) -> Json {
        let mut schema = self.schemas.subschema_for::<T>().to_value();
        spell_out_booleans(&mut schema);
        schema
    }

    /// The routes, and the document.
    pub(crate) fn finish(mut self) -> (Router<App>, Json) {
        let problem = self.schema_of::<Problem>();
        let mut schemas = self.schemas.take_definitions(true);
        schemas.values_mut().for_each(bound_numbers);
        schemas.values_mut().for_each(spell_out_booleans);
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
                "responses": {
                    "Problem": {
                        "description": "What happened, to what, and what to do.",
                        "content": {"application/problem+json": {"schema": problem}},
                    },
                },
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
            let mut schema = in_query(schema);
            bound_numbers(&mut schema);
            spell_out_booleans(&mut schema);
            let mut parameter = json!({
                "name": name, "in": "query", "required": required.contains(&name.as_str()),
            });
            if let Some(said) = schema.as_object_mut().and_then(|it| it.remove("description")) {
                parameter["description"] = said;
            }
            if schema["type"] == "array" {
                parameter["explode"] = json!(true);
            }
            parameter["schema"] = schema;
            self.parameters.push(parameter);
        }
        self
    }

    /// The body that it takes.
    pub(crate) fn body<T: JsonSchema>(mut self) -> Self {
        let whole = self.table.schemas.root_schema_for::<T>().to_value();
        // An empty body is an empty object.
        let is_required = whole["required"].as_array().is_some_and(|it| !it.is_empty());
        let schema = self.table.schema_of::<T>();
        let content = json!({"application/json": {"schema": schema}});
        let body = json!({"required": is_required, "content": content});
        self.said.insert("requestBody".to_owned(), body);
        self.problems.extend([413, 415, 422]);
        self
    }

    /// That a header with this name makes it happen once, however often it is sent.
    pub(crate) fn once(mut self) -> Self {
        self.parameters.push(json!({
            "name": "idempotency-key", "in": "header", "required": false,
            "schema": {"type": "string", "minLength": 1, "maxLength": 200, "pattern": "^[!-~]+$"},
            "description": once::DESCRIPTION,
        }));
        self
    }

    /// That this problem is likely, too.
    pub(crate) fn problem(mut self, status: u16) -> Self {
        self.problems.push(status);
        self
    }

    /// An answer with JSON.
    pub(crate) fn answers<T: JsonSchema>(self, status: u16, said: &str) -> Self {
        self.answers_as::<T>(status, said, "application/json")
    }

    /// An answer in events. This version of the format has no words for what one of them is.
    pub(crate) fn streams(mut self, said: &str) -> Self {
        let answer = json!({"description": said, "content": {"text/event-stream": {}}});
        self.said["responses"]["200"] = answer;
        self.is_stream = true;
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
        let problem = json!({"$ref": "#/components/responses/Problem"});
        for status in &self.problems {
            let answers = &mut said["responses"];
            if answers[status.to_string()].is_null() {
                answers[status.to_string()] = problem.clone();
            }
        }
        said["responses"]["default"] = problem;
        let is_in = |place: &str, it: &&Json| it["in"] == place;
        let of_query = self.parameters.iter().filter(|it| is_in("query", it));
        let names = of_query.filter_map(|it| it["name"].as_str().map(str::to_owned));
        // The table is made once, and each operation is dropped once.
        let _ = self.declared.set(Declared {
            query: names.collect(),
            has_body: said.contains_key("requestBody"),
            is_once: self.parameters.iter().any(|it| is_in("header", &it)),
            is_stream: self.is_stream,
        });
        if !self.parameters.is_empty() {
            said.insert("parameters".to_owned(), json!(self.parameters));
        }
        let path = format!("{BASE}{}", self.path);
        let of_path = self.table.paths.entry(path).or_default();
        of_path.insert(self.verb.word().to_owned(), Json::Object(said));
    }
}

/// What may stand for a name in a path.
fn path_schema(name: &str) -> Json {
    match name {
        // The whole id, or at least 8 digits of its beginning or its end.
        "run" => json!({"type": "string", "pattern": "^[0-9A-Fa-f-]{8,36}$"}),
        "item" | "no" => json!({"type": "integer", "minimum": 0, "maximum": i64::MAX}),
        _ => json!({"type": "string", "minLength": 1}),
    }
}

/// The schema of a field as that of a parameter, which is there or not, but never `null`.
fn in_query(schema: &Json) -> Json {
    let mut schema = schema.clone();
    let is_null = |it: &Json| *it == json!({"type": "null"});
    let Some(fields) = schema.as_object_mut() else {
        return schema;
    };
    if fields.get("default").is_some_and(Json::is_null) {
        fields.remove("default");
    }
    if let Some(Json::Array(kinds)) = fields.get_mut("type") {
        kinds.retain(|kind| kind != "null");
        if let [one] = kinds.as_slice() {
            let one = one.clone();
            fields.insert("type".to_owned(), one);
        }
    }
    if let Some(Json::Array(any)) = fields.get("anyOf") {
        let rest: Vec<&Json> = any.iter().filter(|it| !is_null(it)).collect();
        if let [one] = rest.as_slice() {
            let one = one.as_object().cloned().unwrap_or_default();
            fields.remove("anyOf");
            fields.extend(one);
        }
    }
    schema
}

/// Writes the schemas `true` and `false`, which JSON Schema allows, as objects: generators of clients
/// refuse a document with a schema that is no object. Only `additionalProperties` may be a boolean.
fn spell_out_booleans(schema: &mut Json) {
    let fields = match schema {
        Json::Bool(true) => return *schema = json!({}),
        Json::Bool(false) => return *schema = json!({"not": {}}),
        Json::Object(fields) => fields,
        _ => return,
    };
    for (name, below) in fields {
        match (name.as_str(), below) {
            ("properties" | "patternProperties" | "$defs", Json::Object(schemas)) => {
                schemas.values_mut().for_each(spell_out_booleans);
            }
            ("anyOf" | "oneOf" | "allOf" | "prefixItems", Json::Array(schemas)) => {
                schemas.iter_mut().for_each(spell_out_booleans);
            }
            ("items" | "not" | "contains" | "propertyNames", below) => spell_out_booleans(below),
            ("additionalProperties", below @ Json::Object(_)) => spell_out_booleans(below),
            _ => {}
        }
    }
}

/// Says how large numbers can be: a format is only a remark.
fn bound_numbers(schema: &mut Json) {
    match schema {
        Json::Object(fields) => {
            let (min, max) = match fields.get("format").and_then(Json::as_str) {
                Some("uint32") => (json!(0), json!(u32::MAX)),
                Some("uint64" | "uint") => (json!(0), json!(u64::MAX)),
                Some("int32") => (json!(i32::MIN), json!(i32::MAX)),
                _ => (Json::Null, Json::Null),
            };
            if !max.is_null() {
                fields.entry("minimum").or_insert(min);
                fields.entry("maximum").or_insert(max);
            }
            fields.values_mut().for_each(bound_numbers);
        }
        Json::Array(items) => items.iter_mut().for_each(bound_numbers),
        _ => {}
    }
}

/// What there is no route for.
pub(crate) async fn nowhere(request: Request) -> Response {
    let (method, path) = (request.method(), request.uri().path());
    if let Some(page) = crate::assets::lost(method, path, request.headers()) {
        return page;
    }
    let detail = format!("there is nothing at `{path}`; `{BASE}/openapi.json` says what there is",);
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
