use super::*;

const DEAD_EVENT: &str = "data: {\"error\": {\"message\": \"EngineCore encountered an issue. See stack trace (above) \
                          for the root cause.\", \"type\": \"InternalServerError\", \"param\": null, \"code\": \
                          500}}\n\n";

#[tokio::test]
async fn everybody_is_told_of_a_death_and_the_port_closes_and_opens_again() {
    let sim = sim(Settings { max_num_seqs: 2, load_seconds: Some(0.1), ..quick() }).await;
    let started = start_time(&sim).await;
    let mut streaming = sent(&sim, "/v1/completions", &endless()).await;
    read_until(&mut streaming, "data: ").await;
    let mut plain = sent(&sim, "/v1/completions", &json!({"prompt": "Hi", "max_tokens": 2000})).await;
    until(&sim, |s| s.running == 2).await;
    let mut queued = sent(&sim, "/v1/completions", &endless()).await;
    until(&sim, |s| s.waiting == 1).await;
    let mut probe = TcpStream::connect(sim.addr()).await.unwrap();
    sim.fault(Fault::Die { load_seconds: None });
    probe.write_all(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
    assert!(read_to_end(&mut probe).await.0.starts_with("HTTP/1.1 503 "));
    // As captured, but for the case of the chunk sizes: hyper writes capitals.
    let ending = format!("A9\r\n{DEAD_EVENT}\r\nE\r\ndata: [DONE]\n\n\r\n0\r\n\r\n");
    let (text, error) = read_to_end(&mut streaming).await;
    assert!(error.is_none() && text.ends_with(&ending), "{text}");
    let (text, error) = read_to_end(&mut queued).await;
    assert!(error.is_none() && text.starts_with("HTTP/1.1 200 OK") && text.ends_with(&ending), "{text}");
    let (text, _) = read_to_end(&mut plain).await;
    assert!(text.starts_with("HTTP/1.1 500 ") && text.contains("content-length: 153\r\n"), "{text}");
    assert!(TcpStream::connect(sim.addr()).await.is_err(), "refused while it loads");
    until(&sim, |s| s.starts == 2).await;
    assert!(start_time(&sim).await > started);
    let stats = sim.stats();
    assert_eq!((stats.running, stats.served, stats.aborted, stats.down), (0, 0, 0, false));
}

async fn start_time(sim: &Sim) -> f64 {
    let page = get(sim, "/metrics").await;
    let line = page.text().lines().find(|l| l.starts_with("process_start_time_seconds ")).unwrap().to_owned();
    line.rsplit_once(' ').unwrap().1.parse().unwrap()
}

#[tokio::test]
async fn a_hard_death_resets_connections_and_lasts_until_a_restart() {
    let sim = sim(quick()).await;
    let mut streaming = sent(&sim, "/v1/completions", &endless()).await;
    read_until(&mut streaming, "data: ").await;
    sim.fault(Fault::DieHard { load_seconds: None });
    let (_, error) = read_to_end(&mut streaming).await;
    assert_eq!(error.unwrap().kind(), std::io::ErrorKind::ConnectionReset);
    until(&sim, |s| s.down).await;
    assert!(TcpStream::connect(sim.addr()).await.is_err());
    sim.fault(Fault::Restart { load_seconds: 0.01 });
    until(&sim, |s| s.starts == 2).await;
    assert_eq!(get(&sim, "/health").await.status, StatusCode::OK);
    sim.fault(Fault::Restart { load_seconds: 0.01 });
    until(&sim, |s| s.starts == 3).await;
}

#[tokio::test]
async fn a_loading_engine_can_answer_503() {
    let loading = Loading::Answers503;
    let sim = sim(Settings { start_load_seconds: 0.5, loading, ..quick() }).await;
    let answer = loop {
        match TcpStream::connect(sim.addr()).await {
            Ok(_) => break get(&sim, "/health").await,
            Err(_) => tokio::task::yield_now().await,
        }
    };
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(answer.json()["error"]["message"], "Loading model");
    assert!(sim.stats().down);
    until(&sim, |s| s.starts == 1).await;
    assert_eq!(get(&sim, "/health").await.status, StatusCode::OK);
}

#[tokio::test]
async fn a_long_prompt_kills_by_out_of_memory_and_the_log_names_it() {
    let log = Log::default();
    let settings = Settings { faults: vec![Fault::OomPromptTokens { tokens: 1500 }], ..quick() };
    let sim = start_with_log(settings, log.clone()).await.unwrap();
    let mut bystander = sent(&sim, "/v1/completions", &endless()).await;
    read_until(&mut bystander, "data: ").await;
    post(&sim, "/v1/completions", json!({"prompt": vec![1; 1499], "max_tokens": 1})).await;
    let killer = post(&sim, "/v1/completions", json!({"prompt": vec![1; 1600], "max_tokens": 8})).await;
    assert_eq!(killer.status, StatusCode::INTERNAL_SERVER_ERROR);
    assert!(read_to_end(&mut bystander).await.0.contains(DEAD_EVENT));
    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    let id = sim.stats().prompts_seen[2].clone();
    assert!(text.contains("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB."));
    assert!(text.contains(&format!("NewRequestData(req_id=cmpl-{id}-0-")), "{text}");
    assert!(text.contains("prompt_token_ids_len=1600"));
    assert!(text.contains("total_num_scheduled_tokens=1601"), "{text}");
    assert!(text.contains("Dumping scheduler stats: SchedulerStats(num_running_reqs=2, num_waiting_reqs=0"));
}

#[tokio::test]
async fn a_hanging_engine_is_healthy_and_makes_no_step() {
    let sim = sim(quick()).await;
    let mut streaming = sent(&sim, "/v1/completions", &endless()).await;
    read_until(&mut streaming, "data: ").await;
    assert_eq!(fault(&sim, json!({"fault": "hang"})).await, 200);
    // The step under way still ends; after it the counter stands still.
    let mut steps = -1.0;
    loop {
        let now = metric(&sim, "vllm:iteration_tokens_total_count").await;
        if now == steps {
            break;
        }
        steps = now;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(get(&sim, "/health").await.status, StatusCode::OK);
    assert_eq!(metric(&sim, "vllm:num_requests_running").await, 1.0);
    sim.fault(Fault::Recover);
    let mut buffer = [0; 64 * 1024];
    while metric(&sim, "vllm:iteration_tokens_total_count").await == steps {
        timeout(PATIENCE, streaming.read(&mut buffer)).await.unwrap().unwrap();
    }
}

async fn fault(sim: &Sim, body: Value) -> u16 {
    post(sim, "/sim/fault", body).await.status.as_u16()
}

#[tokio::test]
async fn one_stream_can_be_stalled_while_others_go_on() {
    let sim = sim(quick()).await;
    let mut stalled = sent(&sim, "/v1/completions", &endless()).await;
    read_until(&mut stalled, "data: ").await;
    sim.fault(Fault::Stall { id: None });
    post(&sim, "/v1/completions", json!({"prompt": "Hi", "max_tokens": 20})).await;
    let mut buffer = [0; 64 * 1024];
    // What was on its way may still come; then nothing.
    while let Ok(read) = timeout(Duration::from_millis(100), stalled.read(&mut buffer)).await {
        assert!(read.unwrap() > 0);
    }
    assert_eq!(fault(&sim, json!({"fault": "nonsense"})).await, 400);
}

#[tokio::test]
async fn a_busy_engine_refuses_plain_requests_with_503_and_streams_inside_a_200() {
    let sim = sim(quick()).await;
    sim.fault(Fault::Busy { max_num_queued_reqs: 0 });
    let plain = post(&sim, "/v1/completions", json!({"prompt": "Hi"})).await;
    assert_eq!(plain.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(
        plain.text(),
        "{\"error\":{\"message\":\"The engine is currently busy and cannot accept new requests. Please try again \
         later or on a different instance.\",\"type\":\"Service Unavailable\",\"param\":null,\"code\":503}}"
    );
    let stream = post(&sim, "/v1/completions", json!({"prompt": "Hi", "stream": true})).await;
    assert_eq!(stream.status, StatusCode::OK);
    assert!(stream.text().starts_with("data: {\"error\": {\"message\": \"The engine is currently busy"));
    assert!(stream.text().ends_with("\"code\": 503}}\n\ndata: [DONE]\n\n"));
    sim.fault(Fault::Busy { max_num_queued_reqs: 2 });
    let three = json!({"prompt": "Hi", "n": 3});
    assert_eq!(post(&sim, "/v1/completions", three).await.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(post(&sim, "/v1/completions", json!({"prompt": "Hi"})).await.status, StatusCode::OK);
}

#[tokio::test]
async fn streams_can_end_early_or_be_cut() {
    let sim = sim(quick()).await;
    sim.fault(Fault::EndStreamEarly { after_tokens: 3 });
    let early = post(&sim, "/v1/completions", endless()).await;
    assert!(!early.text().contains("[DONE]"));
    // Tokens that come while an event waits to be sent go with it.
    assert!((1..=3).contains(&early.text().matches("data: ").count()), "{}", early.text());
    sim.fault(Fault::CutStream { after_tokens: 3 });
    let mut stream = sent(&sim, "/v1/completions", &endless()).await;
    let (text, _) = read_to_end(&mut stream).await;
    assert!((1..=3).contains(&text.matches("data: ").count()), "{text}");
    assert!(!text.ends_with("0\r\n\r\n"), "the chunked body has no end");
    until(&sim, |s| s.aborted == 2 && s.running == 0).await;
}

#[tokio::test]
async fn metrics_can_be_slow_or_absent_and_idle_connections_are_closed() {
    let sim = sim(quick()).await;
    sim.fault(Fault::SlowMetrics { seconds: 0.2 });
    let asked = Instant::now();
    get(&sim, "/metrics").await;
    assert!(asked.elapsed() >= Duration::from_millis(200));
    sim.fault(Fault::MetricsAbsent);
    assert_eq!(get(&sim, "/metrics").await.status, StatusCode::NOT_FOUND);
    sim.fault(Fault::CloseIdle { seconds: 0.1 });
    let mut idle = TcpStream::connect(sim.addr()).await.unwrap();
    idle.write_all(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let (text, error) = read_to_end(&mut idle).await;
    assert!(error.is_none() && text.starts_with("HTTP/1.1 200 OK"), "{text}");
    assert_eq!(text.matches("HTTP/1.1").count(), 1, "closed without a word");
}
