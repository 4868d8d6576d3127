//! chromedriver, and the browsers that it starts.

use std::{path::PathBuf, process::Stdio};

use fantoccini::{ClientBuilder, wd::WebDriverCompatibleCommand};
use hyper_util::client::legacy::connect::HttpConnector;
use serde_json::{Map, Value as Json, json};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
};

use crate::{Problem, page::Page, programs::Browser};

/// How large a page is, and whether it is a phone's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    Desktop,
    Phone,
}

impl Shape {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Shape::Desktop => "desktop",
            Shape::Phone => "phone",
        }
    }

    /// Width and height.
    const fn size(self) -> (u32, u32) {
        match self {
            Shape::Desktop => (1440, 900),
            Shape::Phone => (390, 844),
        }
    }
}

/// A chromedriver that runs until this is dropped.
pub(crate) struct Driver {
    process: Child,
    address: String,
    chromium: PathBuf,
}

impl Driver {
    pub(crate) async fn start(browser: Browser) -> Result<Driver, Problem> {
        let mut process = Command::new(&browser.driver)
            .arg("--port=0")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| format!("{}: {error}", browser.driver.display()))?;
        let stdout = process.stdout.take().ok_or("its output is not piped")?;
        let mut lines = BufReader::new(stdout).lines();
        let port = loop {
            let line = lines.next_line().await?;
            let line = line.ok_or("chromedriver ended before it has said its port")?;
            if let Some((_, port)) = line.split_once("started successfully on port ") {
                break port.trim_end_matches('.').to_owned();
            }
        };
        // What it says later must be read, or it stops when the pipe is full.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Ok(Driver {
            process,
            address: format!("http://127.0.0.1:{port}"),
            chromium: browser.chromium,
        })
    }

    /// A browser of its own with one page, for a server at `base`.
    pub(crate) async fn page(&self, shape: Shape, base: &str) -> Result<Page, Problem> {
        let session = ClientBuilder::new(HttpConnector::new())
            .capabilities(self.capabilities(shape))
            .connect(&self.address)
            .await
            .map_err(|error| format!("the browser did not start: {error}"))?;
        let page = Page::new(session, base);
        if shape == Shape::Desktop {
            // The window has a frame even if nobody sees it; this is the page alone.
            let (width, height) = shape.size();
            let metrics =
                json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
            page.devtools("Emulation.setDeviceMetricsOverride", metrics).await?;
        }
        Ok(page)
    }

    fn capabilities(&self, shape: Shape) -> Map<String, Json> {
        let (width, height) = shape.size();
        let arguments = [
            "--headless=new".to_owned(),
            // Root has no sandbox, and containers little shared memory.
            "--no-sandbox".to_owned(),
            "--disable-dev-shm-usage".to_owned(),
            "--disable-gpu".to_owned(),
            "--force-device-scale-factor=1".to_owned(),
            "--lang=en-GB".to_owned(),
            format!("--window-size={width},{height}"),
        ];
        let mut options = json!({"args": arguments, "binary": self.chromium});
        if shape == Shape::Phone {
            options["mobileEmulation"] = json!({"deviceMetrics": {
                "width": width, "height": height, "pixelRatio": 2, "touch": true, "mobile": true,
            }});
        }
        let mut capabilities = Map::new();
        capabilities.insert("goog:chromeOptions".to_owned(), options);
        capabilities.insert("goog:loggingPrefs".to_owned(), json!({"browser": "ALL"}));
        capabilities
    }

    pub(crate) async fn end(mut self) {
        // It is gone in any case.
        let _ = self.process.kill().await;
    }
}

/// A command that only chromedriver knows.
#[derive(Debug)]
pub(crate) struct Extra {
    pub(crate) path: &'static str,
    pub(crate) body: Json,
}

impl WebDriverCompatibleCommand for Extra {
    fn endpoint(
        &self,
        base: &url::Url,
        session: Option<&str>,
    ) -> Result<url::Url, url::ParseError> {
        let session = session.unwrap_or_default();
        base.join(&format!("session/{session}/{}", self.path))
    }

    fn method_and_body(&self, _: &url::Url) -> (http::Method, Option<String>) {
        (http::Method::POST, Some(self.body.to_string()))
    }
}
