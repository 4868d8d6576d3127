//! An engine with a few workflows, its server, and ways to call it.

use std::time::Duration;

use axum::{
    Router,
    body::Body,
    http::{HeaderMap, Method, Request, StatusCode, header},
};
use everstep::{Deferred, Engine, Queue, prelude::*};
use everstep_server::{Role, Server, Token};
use http_body_util::BodyExt;
use serde_json::{Value as Json, json};
use tower::ServiceExt;

const REVIEW: Deferred<u32, String> = Deferred::new("review");
pub(crate) const MAILS: Queue<Json, ()> = Queue::new("mails");

#[workflow]
async fn greet(ctx: Ctx, name: String) -> everstep::Result<String> {
    let greeting = ctx.step("greet", async move || Ok(format!("hello {name}"))).await?;
    Ok(greeting)
}

#[workflow]
async fn patient(ctx: Ctx) -> everstep::Result<u32> {
    let number: u32 = ctx.listen("number").await?;
    Ok(number + 1)
}

/// Answers whatever it is asked.
#[workflow]
async fn oracle(ctx: Ctx) -> everstep::Result<()> {
    let question = ctx.receive::<Json>("question").await?;
    question.reply(&json!({"password": "42", "asked": question.body}))?;
    ctx.step("answered", async || Ok(())).await
}

/// Shows and says things with secrets in them, and waits for a review.
#[workflow]
async fn secretive(ctx: Ctx, order: Json) -> everstep::Result<Json> {
    ctx.set_state("order", &order)?;
    if let Some(password) = order.get("password") {
        ctx.set_state("password", password)?;
    }
    let review = ctx.deferred(REVIEW);
    ctx.set_state("token", &review.token())?;
    let said = order.clone();
    ctx.step_with("charge", async move |step| {
        step.emit("said", &said).await?;
        Ok(said.clone())
    })
    .await?;
    match review.await? {
        Ok(_) => Ok(order),
        Err(reason) => Err(Error::fatal(reason)),
    }
}

/// Fails with the text that it is given.
#[workflow]
async fn broken(ctx: Ctx, why: String) -> everstep::Result<()> {
    ctx.step("break", async move || -> everstep::Result<()> { Err(Error::fatal(why.clone())) })
        .await
}

/// Has a child.
#[workflow]
async fn parent(ctx: Ctx, name: String) -> everstep::Result<String> {
    ctx.child(greet, name).await
}

/// Has a child that fails with the text that it is given.
#[workflow]
async fn careless(ctx: Ctx, why: String) -> everstep::Result<()> {
    ctx.child(broken, why).await
}

/// Does so many steps, then waits for `go`, and does another.
#[workflow]
async fn long(ctx: Ctx, steps: u32) -> everstep::Result<()> {
    for no in 0..steps {
        ctx.step(&format!("step {no:05}"), async || Ok(())).await?;
    }
    ctx.listen::<()>("go").await?;
    ctx.step("a last one", async || Ok(())).await
}

/// Lets the one run that is `regretful` be undone.
pub(crate) static UNDO: tokio::sync::Notify = tokio::sync::Notify::const_new();

/// Does something that is undone when it is let.
#[workflow]
async fn regretful(ctx: Ctx) -> everstep::Result<()> {
    ctx.step("book", async || Ok(()))
        .rollback(async |_, ()| {
            UNDO.notified().await;
            Ok(())
        })
        .await?;
    ctx.listen("go").await
}

/// Does so many steps that give much.
#[workflow]
async fn heavy(ctx: Ctx, steps: u32) -> everstep::Result<()> {
    for no in 0..steps {
        let name = format!("step {no:05}");
        ctx.step(&name, async || Ok("x".repeat(900 << 10))).await?;
    }
    Ok(())
}

pub(crate) struct World {
    pub(crate) engine: Engine,
    pub(crate) app: Router,
    pub(crate) headers: HeaderMap,
}

pub(crate) const TOKENS: [(Role, &str); 3] = [
    (Role::Read, "token of a reader, made of dice"),
    (Role::Operate, "token of an operator, made of dice"),
    (Role::Admin, "token of an admin, made of dice"),
];

/// A server with a token for each role.
pub(crate) fn with_tokens(mut server: Server) -> Server {
    for (role, text) in TOKENS {
        server = server.token(Token::new(role.as_str(), role, text));
    }
    server
}

impl World {
    pub(crate) async fn new() -> World {
        World::with(|server| server).await
    }

    pub(crate) async fn with(make: impl FnOnce(Server) -> Server) -> World {
        let engine = Engine::in_memory()
            .register(greet)
            .register(patient)
            .register(oracle)
            .register(secretive)
            .register(broken)
            .register(parent)
            .register(careless)
            .register(long)
            .register(heavy)
            .register(regretful)
            .start()
            .await
            .unwrap();
        let app = make(Server::new(engine.client())).router();
        World { engine, app, headers: HeaderMap::new() }
    }

    /// Sends this header with every request from now on.
    pub(crate) fn header(&mut self, name: &'static str, value: &str) {
        self.headers.insert(name, value.parse().unwrap());
    }

    /// The answer to a request at any address.
    pub(crate) async fn answer(&self, request: Request<Body>) -> axum::response::Response {
        self.app.clone().oneshot(request).await.unwrap()
    }

    pub(crate) fn request(&self, method: Method, path: &str, body: Option<&Json>) -> Request<Body> {
        let mut request = Request::builder().method(method).uri(format!("/api/v1{path}"));
        if let Some(headers) = request.headers_mut() {
            headers.extend(self.headers.clone());
        }
        let body = match body {
            Some(body) => {
                request = request.header(header::CONTENT_TYPE, "application/json");
                Body::from(body.to_string())
            }
            None => Body::empty(),
        };
        request.body(body).unwrap()
    }

    pub(crate) async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<Json>,
    ) -> (StatusCode, Json) {
        read(self.answer(self.request(method, path, body.as_ref())).await).await
    }

    pub(crate) async fn get(&self, path: &str) -> Json {
        let (status, body) = self.call(Method::GET, path, None).await;
        assert_eq!(status, StatusCode::OK, "{path}: {body}");
        body
    }

    pub(crate) async fn post(&self, path: &str, body: Json) -> (StatusCode, Json) {
        self.call(Method::POST, path, Some(body)).await
    }

    /// Posts it, and expects that it is done.
    pub(crate) async fn done(&self, path: &str, body: Json) -> Json {
        let (status, answer) = self.post(path, body).await;
        assert!(status.is_success(), "{path}: {status} {answer}");
        answer
    }

    /// Starts a run: its id.
    pub(crate) async fn start(&self, workflow: &str, input: Json) -> String {
        let body = json!({"workflow": workflow, "input": input});
        text(&self.done("/runs", body).await["id"])
    }

    /// Waits until a run has ended.
    pub(crate) async fn ended(&self, id: &str) -> Json {
        self.get(&format!("/runs/{id}/result?wait_ms=20000")).await
    }

    /// Asks until the answer is as it should be.
    pub(crate) async fn until(&self, path: &str, is_right: impl Fn(&Json) -> bool) -> Json {
        let asked = async {
            loop {
                let answer = self.get(path).await;
                if is_right(&answer) {
                    return answer;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let limit = Duration::from_secs(60);
        let answer = tokio::time::timeout(limit, asked).await;
        answer.unwrap_or_else(|_| panic!("{path} did not become what it should"))
    }

    pub(crate) async fn end(self) {
        self.engine.shutdown().await;
    }
}

pub(crate) fn text(value: &Json) -> String {
    value.as_str().unwrap().to_owned()
}

/// The status and the JSON of an answer; `null` if it has no body.
pub(crate) async fn read(response: axum::response::Response) -> (StatusCode, Json) {
    let status = response.status();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    let json = match bytes.is_empty() {
        true => Json::Null,
        false => serde_json::from_slice(&bytes)
            .unwrap_or_else(|_| panic!("not JSON: {}", String::from_utf8_lossy(&bytes))),
    };
    (status, json)
}
