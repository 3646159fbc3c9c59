use super::*;

#[tokio::test]
async fn a_plain_answer_has_vllms_fields() {
    let sim = sim(quick()).await;
    let answer = post(&sim, "/v1/completions", json!({"prompt": "Hi there", "max_tokens": 8, "n": 2})).await;
    assert_eq!(answer.headers["server"], "uvicorn");
    let body = answer.json();
    let count = post(&sim, "/tokenize", json!({"prompt": "Hi there"})).await.json()["count"].clone();
    assert_eq!(body["usage"]["prompt_tokens"], count);
    assert_eq!(body["usage"]["completion_tokens"], 16);
    assert_eq!(body["object"], "text_completion");
    assert_eq!(body["choices"][1]["index"], 1);
    assert_eq!(body["choices"][0]["finish_reason"], "length");
    let words = body["choices"][0]["text"].as_str().unwrap();
    let recount = post(&sim, "/tokenize", json!({"prompt": words, "add_special_tokens": false})).await;
    assert_eq!(recount.json()["count"], 8, "each word is one token");
}

#[tokio::test]
async fn a_chat_is_counted_like_its_tokenization_and_ends_by_itself() {
    let sim = sim(Settings { step_ms: 0.2, ..quick() }).await;
    let messages =
        json!([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi there"}]);
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]);
    let body = json!({"model": "sim", "messages": messages, "tools": tools});
    let answer = post(&sim, "/v1/chat/completions", body.clone()).await.json();
    assert_eq!(answer["usage"]["prompt_tokens"], post(&sim, "/tokenize", body).await.json()["count"]);
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    assert_eq!(answer["choices"][0]["message"]["role"], "assistant");
    let plain = json!({"messages": messages, "max_tokens": 1});
    let without = post(&sim, "/v1/chat/completions", plain).await.json();
    assert!(without["usage"]["prompt_tokens"].as_u64() < answer["usage"]["prompt_tokens"].as_u64());
    let all = json!({"messages": messages, "ignore_eos": true});
    let all = post(&sim, "/v1/chat/completions", all).await.json();
    assert_eq!(all["usage"]["total_tokens"], 2048);
    assert_eq!(all["choices"][0]["finish_reason"], "length");
}

#[tokio::test]
async fn each_event_of_a_stream_is_one_chunk() {
    let sim = sim(quick()).await;
    let body = json!({
        "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3, "n": 2, "stream": true,
        "stream_options": {"include_usage": true},
    });
    let mut stream = sent(&sim, "/v1/chat/completions", &body).await;
    let text = read_until(&mut stream, "0\r\n\r\n").await;
    let (head, rest) = text.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    assert!(head.contains("content-type: text/event-stream; charset=utf-8"));
    assert!(head.contains("transfer-encoding: chunked"));
    let mut events = Vec::new();
    let mut rest = rest;
    while let Some((size, after)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap();
        events.push(&after[..size]);
        rest = &after[size + 2..];
        if size == 0 {
            break;
        }
    }
    assert_eq!(events.pop(), Some(""));
    assert!(events.iter().all(|e| e.starts_with("data: ") && e.ends_with("\n\n")));
    assert_eq!(events.pop(), Some("data: [DONE]\n\n"));
    assert!(events[0].contains("\"role\":\"assistant\"") && events[1].contains("\"role\":\"assistant\""));
    let usage = events.pop().unwrap();
    assert!(usage.contains("\"choices\":[]") && usage.contains("\"completion_tokens\":6"), "{usage}");
    let finished = events.iter().filter(|e| e.contains("\"finish_reason\":\"length\"")).count();
    assert_eq!(finished, 2);
}

#[tokio::test]
async fn the_request_id_of_the_client_is_the_answers() {
    let sim = sim(quick()).await;
    let body = json!({"prompt": "Hi", "max_tokens": 1}).to_string();
    let request = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\nx-request-id: abc-123\r\ncontent-type: application/json; \
         charset=utf-8\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut stream = TcpStream::connect(sim.addr()).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let (answer, _) = read_to_end(&mut stream).await;
    assert!(answer.contains("\"id\":\"cmpl-abc-123\""), "{answer}");
    assert_eq!(sim.stats().prompts_seen, ["abc-123"]);
}

#[tokio::test]
async fn lengths_are_refused_as_vllm_refuses_them() {
    let sim = sim(Settings { step_ms: 0.1, ..quick() }).await;
    let ids = |n: usize, max: i64| json!({"prompt": vec![1; n], "max_tokens": max});
    let cut = post(&sim, "/v1/completions", ids(2041, 8)).await;
    assert_eq!((cut.status, &cut.json()["usage"]["completion_tokens"]), (StatusCode::OK, &json!(7)));
    assert_eq!(post(&sim, "/v1/completions", ids(2047, 1)).await.status, StatusCode::OK);
    let message = |answer: &Answer| {
        assert_eq!(answer.status, StatusCode::BAD_REQUEST);
        answer.json()["error"]["message"].as_str().unwrap().to_owned()
    };
    let full = post(&sim, "/v1/completions", ids(2048, 1)).await;
    assert_eq!(message(&full), "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)");
    let over = post(&sim, "/v1/completions", ids(3000, 1)).await;
    assert_eq!(
        over.text(),
        "{\"error\":{\"message\":\"This model's maximum context length is 2048 tokens. However, your prompt \
         contains 3000 input tokens, which exceeds this limit even without any output tokens. Please reduce the \
         length of the input prompt. (parameter=input_tokens, value=3000)\",\"type\":\"BadRequestError\",\
         \"param\":\"input_tokens\",\"code\":400}}"
    );
    let text = post(&sim, "/v1/completions", json!({"prompt": "hello ".repeat(3000)})).await;
    assert!(message(&text).contains("contains at least 2049 input tokens"));
    let chat = json!({"messages": [{"role": "user", "content": "hello ".repeat(3000)}], "stream": true});
    assert!(message(&post(&sim, "/v1/chat/completions", chat).await).contains("at least 2049"));
    let huge = post(&sim, "/v1/completions", json!({"prompt": "a".repeat(900_000)})).await;
    assert!(message(&huge).contains("contains 900000 characters (more than "));
    assert_eq!(huge.json()["error"]["param"], "input_text");
    let greedy = post(&sim, "/v1/completions", ids(3, 5000)).await;
    assert!(message(&greedy).starts_with("max_tokens=5000 cannot be greater than max_model_len=2048."));
    let long = post(&sim, "/tokenize", json!({"prompt": "hello ".repeat(9000)})).await;
    assert!(long.json()["count"].as_u64().unwrap() > 9000, "no limit here");
    assert_eq!(sim.stats().prompts_seen.len(), 2, "only what was scheduled");
}

#[tokio::test]
async fn other_errors_are_vllms_too() {
    let sim = sim(quick()).await;
    let chat = "/v1/chat/completions";
    let unknown =
        post(&sim, chat, json!({"model": "nope", "messages": [{"role": "user", "content": "a"}]})).await;
    assert_eq!(unknown.status, StatusCode::NOT_FOUND);
    assert_eq!(
        unknown.text(),
        "{\"error\":{\"message\":\"The model `nope` does not exist. Valid aliases: sim.\",\"type\":\
         \"NotFoundError\",\"param\":\"model\",\"code\":404}}"
    );
    let broken = ask(&sim, Method::POST, chat, "{\"model\": \"tiny\", \"messages\": [").await;
    assert_eq!(
        broken.text(),
        "{\"error\":{\"message\":\"1 validation error:\\n  {'type': 'json_invalid', 'loc': 'body.31', 'msg': \
         'JSON decode error', 'input': '<dict of 0 items>', 'ctx': {'error': 'Expecting value'}}\",\"type\":\
         \"Bad Request\",\"param\":\"body.31\",\"code\":400}}"
    );
    for (body, status) in [
        (json!({"prompt": ""}), 400),
        (json!({"prompt": []}), 400),
        (json!({"prompt": [999_999]}), 400),
        (json!({"prompt": "a", "max_tokens": 0}), 400),
        (json!({"prompt": "a", "max_tokens": -1}), 400),
        (json!({"prompt": "a", "n": 0}), 400),
        (json!({"prompt": "a", "n": 20_000}), 400),
        (json!({"prompt": "a", "max_tokens": 1, "unknown": 1}), 200),
    ] {
        assert_eq!(post(&sim, "/v1/completions", body.clone()).await.status.as_u16(), status, "{body}");
    }
    let no_path = get(&sim, "/nosuch").await;
    assert_eq!((no_path.status.as_u16(), no_path.text()), (404, "{\"detail\":\"Not Found\"}"));
    let wrong = get(&sim, chat).await;
    assert_eq!((wrong.status.as_u16(), wrong.text()), (405, "{\"detail\":\"Method Not Allowed\"}"));
    assert_eq!(wrong.headers["allow"], "POST");
    assert_eq!(ask(&sim, Method::HEAD, "/health", "").await.status, StatusCode::METHOD_NOT_ALLOWED);
}

#[tokio::test]
async fn what_a_gateway_asks_is_answered() {
    let sim = sim(Settings { root: Some("/models/sim".into()), ..quick() }).await;
    assert_eq!(get(&sim, "/version").await.text(), "{\"version\":\"0.32.0\"}");
    assert_eq!(get(&sim, "/health").await.text(), "");
    assert_eq!(ask(&sim, Method::POST, "/ping", "").await.status, StatusCode::OK);
    let model = get(&sim, "/v1/models").await.json()["data"][0].clone();
    assert_eq!((&model["root"], &model["max_model_len"]), (&json!("/models/sim"), &json!(2048)));
    post(&sim, "/v1/completions", json!({"prompt": vec![1; 40], "max_tokens": 5})).await;
    until(&sim, |s| s.served == 1).await;
    let page = get(&sim, "/metrics").await;
    assert_eq!(page.headers["content-type"], "text/plain; version=1.0.0; charset=utf-8");
    for line in [
        "vllm:num_requests_running{engine=\"0\",model_name=\"sim\"} 0.0",
        "vllm:num_requests_waiting{engine=\"0\",model_name=\"sim\"} 0.0",
        "vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"sim\"} 0.0",
        "vllm:prompt_tokens_total{engine=\"0\",model_name=\"sim\"} 40.0",
        "vllm:generation_tokens_total{engine=\"0\",model_name=\"sim\"} 5.0",
        "vllm:iteration_tokens_total_count{engine=\"0\",model_name=\"sim\"} 5.0",
        "vllm:iteration_tokens_total_sum{engine=\"0\",model_name=\"sim\"} 44.0",
        "vllm:request_success_total{engine=\"0\",model_name=\"sim\",finished_reason=\"length\"} 1.0",
    ] {
        assert!(page.text().lines().any(|l| l == line), "{line}\n{}", page.text());
    }
    assert!(page.text().contains(",num_gpu_blocks=\"256\","));
    assert!(page.text().contains("block_size=\"16\""));
    assert!(page.text().contains("\nprocess_start_time_seconds 1"));
}

#[tokio::test]
async fn the_tokenizer_is_small_and_can_be_written_out() {
    assert!(tokenizer_json().len() + tokenizer_config().len() + chat_template().len() < 150 * 1024);
    let dir = tempfile::tempdir().unwrap();
    write_tokenizer(dir.path()).unwrap();
    assert_eq!(std::fs::read(dir.path().join("tokenizer.json")).unwrap(), tokenizer_json());
    assert!(dir.path().join("chat_template.jinja").exists());
}

#[tokio::test]
async fn a_client_can_say_how_long_its_answer_is_meant_to_be() {
    let sim = sim(Settings { step_ms: 0.1, ..quick() }).await;
    let ask = async |body: Value| {
        let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
        let request = Request::post(format!("{}/v1/chat/completions", sim.url()))
            .header("content-type", "application/json")
            .header("x-sim-output-tokens", "9")
            .body(Full::new(Bytes::from(body.to_string())))
            .unwrap();
        let body = client.request(request).await.unwrap().into_body().collect().await.unwrap().to_bytes();
        let answer: Value = serde_json::from_slice(&body).unwrap();
        (answer["usage"]["completion_tokens"].clone(), answer["choices"][0]["finish_reason"].clone())
    };
    let messages = json!([{"role": "user", "content": "Hi"}]);
    assert_eq!(ask(json!({"messages": messages})).await, (json!(9), json!("stop")));
    assert_eq!(ask(json!({"messages": messages, "max_tokens": 50})).await, (json!(9), json!("stop")));
    assert_eq!(ask(json!({"messages": messages, "max_tokens": 4})).await, (json!(4), json!("length")));
}
