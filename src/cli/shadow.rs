//! `kvgate shadow-report`: what the rules in shadow would have done, asked of a running gateway.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use http::header::{AUTHORIZATION, HOST};
use http::{Request, Uri};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper_util::rt::TokioIo;
use serde::{Deserialize, Serialize};

use crate::admit::Tally;

/// The state page is some kilobytes.
const MOST_BYTES: usize = 4 << 20;
const PATIENCE: Duration = Duration::from_secs(10);
/// A rule is ready to be enforced where it surely refuses falsely less than this share of its requests.
const READY: f64 = 0.001;
/// Requests without a false refusal of which that can be said.
const ENOUGH: u64 = 2_704;

/// Say what each rule in shadow would have refused, what the engine then did with it, and in which order to
/// switch the rules on.
#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = "Example:\n  kvgate serve --engine http://127.0.0.1:8000 --mode shadow\n  kvgate shadow-report"
)]
pub struct Args {
    /// The running gateway's admin port.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8081")]
    pub admin: String,
    /// File with the admin port's token, where that is not on loopback.
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// The parts of the state page that are looked at.
#[derive(Debug, Deserialize)]
struct State {
    #[serde(default)]
    shadow: BTreeMap<String, Tally>,
    limits: Limits,
}

#[derive(Debug, Deserialize)]
struct Limits {
    mode: BTreeMap<String, String>,
}

/// One rule's line.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Line {
    rule: String,
    /// Its mode now.
    mode: String,
    #[serde(flatten)]
    tally: Tally,
    /// The share of its requests that it would have refused falsely is below this with 95 % confidence.
    most_false_share: Option<f64>,
}

/// Runs `kvgate shadow-report`; data to `out`.
///
/// # Errors
/// Where the gateway cannot be asked, or `out` cannot be written.
pub fn report(args: &Args, out: &mut dyn Write) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let state = runtime.block_on(async {
        tokio::time::timeout(PATIENCE, fetch(args)).await.context("no answer within 10 s")?
    });
    let state = state.with_context(|| format!("--admin {}", args.admin))?;
    let lines = lines(state);
    if args.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&lines)?)?;
        return Ok(());
    }
    show(&lines, out)
}

async fn fetch(args: &Args) -> anyhow::Result<State> {
    let uri: Uri = args.admin.parse().context("not a URL")?;
    ensure!(uri.scheme_str() == Some("http"), "the admin port speaks http: http://ADDRESS:PORT");
    let host = uri.authority().context("no address in it")?.as_str();
    let address = if uri.port().is_some() { host.to_owned() } else { format!("{host}:80") };
    let stream = tokio::net::TcpStream::connect(&address).await.context("is the gateway running?")?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let mut request = Request::get("/api/v1/state").header(HOST, host);
    if let Some(file) = &args.token_file {
        let token =
            std::fs::read_to_string(file).with_context(|| format!("--token-file {}", file.display()))?;
        request = request.header(AUTHORIZATION, format!("Bearer {}", token.trim()));
    }
    let answer = sender.send_request(request.body(Empty::<bytes::Bytes>::new())?).await?;
    let status = answer.status();
    let body = Limited::new(answer.into_body(), MOST_BYTES).collect().await;
    let body = body.map_err(|e| anyhow::anyhow!("the answer cannot be read: {e}"))?.to_bytes();
    if !status.is_success() {
        let text = plain(&String::from_utf8_lossy(&body[..body.len().min(300)]));
        bail!("{status}: {text}");
    }
    serde_json::from_slice(&body).context("the answer is not a gateway's state page")
}

/// Words of whoever answered, without what would steer a terminal.
fn plain(text: &str) -> String {
    text.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).take(300).collect()
}

/// The rules that judged anything in shadow, those to be switched on first before.
fn lines(state: State) -> Vec<Line> {
    let mut lines: Vec<Line> = state
        .shadow
        .into_iter()
        .map(|(rule, tally)| Line {
            mode: plain(state.limits.mode.get(&rule).map_or("", String::as_str)),
            rule: plain(&rule),
            most_false_share: tally.most_false(),
            tally,
        })
        .collect();
    lines.sort_by(|a, b| {
        let (a, b) = (a.most_false_share.unwrap_or(1.0), b.most_false_share.unwrap_or(1.0));
        a.total_cmp(&b)
    });
    lines
}

fn show(lines: &[Line], out: &mut dyn Write) -> anyhow::Result<()> {
    if lines.is_empty() {
        writeln!(
            out,
            "No rule has judged a request in shadow since the gateway started: `serve --mode shadow`, or PATCH \
             /api/v1/limits."
        )?;
        return Ok(());
    }
    writeln!(
        out,
        "{:<12}{:>10}{:>15}{:>11}{:>9}{:>8}{:>13}{:>15}",
        "rule", "requests", "would refuse", "completed", "crashed", "failed", "died under", "false at most"
    )?;
    for line in lines {
        let tally = &line.tally;
        let most = line.most_false_share.map_or("-".to_owned(), |share| format!("{:.2} %", 100.0 * share));
        writeln!(
            out,
            "{:<12}{:>10}{:>15}{:>11}{:>9}{:>8}{:>13}{most:>15}",
            line.rule,
            tally.requests,
            tally.refused,
            tally.refused_completed,
            tally.refused_crashed,
            tally.refused_failed,
            tally.passed_crashed
        )?;
    }
    writeln!(
        out,
        "\nOf those that a rule would have refused: completed, crashed, failed is what the engine did with them. \
         False\nat most: with 95 % confidence the rule would have refused falsely a smaller share of its requests \
         (each that\nthe engine completed is taken for one). Died under: requests that it let pass and that were with the engine \
         when it\ndied; most of them only stood beside the one that killed it.\n\nThe order in which to switch them on:"
    )?;
    for (place, line) in lines.iter().enumerate() {
        writeln!(out, "{:>3}. {}: {}", place + 1, line.rule, advice(line))?;
    }
    Ok(())
}

/// What to do with a rule.
fn advice(line: &Line) -> String {
    let tally = &line.tally;
    let most = line.most_false_share.unwrap_or(1.0);
    if line.mode == "enforce" {
        return "on already".to_owned();
    }
    if most < READY {
        return "ready".to_owned();
    }
    if tally.refused_completed == 0 {
        let more = ENOUGH.saturating_sub(tally.requests).max(1);
        return format!("no false refusal so far: ready after some {more} more requests without one");
    }
    format!(
        "look at its `would_refuse` log lines first: the engine completed {} of the {} that it would have refused",
        tally.refused_completed, tally.refused
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn state() -> State {
        let tally = |requests, refused, completed| {
            json!({"requests": requests, "refused": refused, "refused_completed": completed, "refused_crashed": 1,
                   "refused_failed": 0, "passed_crashed": 0})
        };
        serde_json::from_value(json!({
            "shadow": {"capacity": tally(1000, 300, 290), "length": tally(3000, 4, 0), "guard": tally(100, 1, 0)},
            "limits": {"mode": {"capacity": "shadow", "length": "shadow", "guard": "shadow"}},
        }))
        .unwrap()
    }

    #[test]
    fn the_safest_rule_comes_first() {
        let lines = lines(state());
        let rules: Vec<&str> = lines.iter().map(|line| line.rule.as_str()).collect();
        assert_eq!(rules, ["length", "guard", "capacity"]);
        assert_eq!(advice(&lines[0]), "ready");
        assert!(advice(&lines[1]).contains("2604 more requests"), "{}", advice(&lines[1]));
        assert!(advice(&lines[2]).contains("290 of the 300"), "{}", advice(&lines[2]));
        let mut text = Vec::new();
        show(&lines, &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains("1. length: ready"), "{text}");
    }

    #[test]
    fn enough_is_where_the_bound_is_below_the_share() {
        assert!(
            crate::admit::upper(0, ENOUGH) < READY && crate::admit::upper(0, ENOUGH - 10) >= READY * 0.999
        );
    }
}
