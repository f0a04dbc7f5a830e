# SPDX-License-Identifier: MIT
"""Sessions of programs that people run: whole conversations with tools, in the shapes that these programs send. The
bodies are written after the programs' public ones, cut to what a model of 2048 tokens has room for; texts are ours.

Each session takes at least five turns. Where the program would wait for the model to call a tool, the model is made to
call it once (so that its own call comes back in the history), and elsewhere the history has calls as the program keeps
them: the demo model calls only what it was taught."""

LONG_NAME = "mcp__plugin_issue-tracker_of_the_whole_company__" + "list_all_open_issues_that_are_assigned_to_me_in_this_sprint"
BROKEN = "Caf\ud800\u0000\u001b[31m"  # half a pair, a NUL, a colour: what terminals leave in results


def schema(**properties):
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


SHORT = {"type": "string", "maxLength": 4}


def claude_code(talk):
    assert len(LONG_NAME) > 64 and len(LONG_NAME) <= 128
    cached = {"cache_control": {"type": "ephemeral", "ttl": "1h", "scope": "global"}}
    tools = [{"name": "Bash", "description": "Runs a command.", "input_schema": {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema(command=SHORT)},
              "eager_input_streaming": True},
             {"name": "ToolSearch", "description": "Finds tools.", "input_schema": schema(query=SHORT)},
             {"name": LONG_NAME, "description": "Issues.", "input_schema": schema(page=SHORT), "defer_loading": True, **cached},
             {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
             {"type": "bash_20250124", "name": "bash"}]
    beta = {"anthropic-beta": "claude-code-20250219,context-management-2025-06-27,interleaved-thinking-2025-05-14"}
    common = {"max_tokens": 70, "metadata": {"user_id": "u_1"}, "temperature": 1, "stream": True,
              "system": [{"type": "text", "text": "You are a CLI.", **cached}, {"type": "text", "text": "Be brief."}],
              "thinking": {"type": "disabled"}, "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
              "output_config": {"effort": "high"}, "tools": tools, "some_member_of_next_month": {"on": True}}
    history = [{"role": "user", "content": [{"type": "text", "text": "<system-reminder>today</system-reminder>"},
                                            {"type": "text", "text": "What is 3 + 4?", **cached}]}]
    talk.ask("POST", "/v1/messages/count_tokens?beta=true", {"model": talk.model, "messages": history, "tools": tools, "system": common["system"]})
    first = talk.messages({**common, "messages": history}, beta)
    history += [{"role": "assistant", "content": first or [{"type": "text", "text": "7"}]},
                {"role": "system", "content": "The user opened a file."}, {"role": "user", "content": "Run it."}]
    called = talk.messages({**common, "tool_choice": {"type": "tool", "name": "Bash"}, "messages": history}, beta)
    use = called[-1]
    assert use["type"] == "tool_use" and use["name"] == "Bash" and set(use["input"]) == {"command"}, called
    history += [{"role": "assistant", "content": called},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use["id"], "is_error": True, **cached,
                                              "content": [{"type": "text", "text": BROKEN}, {"type": "image", "source": {
                                                  "type": "base64", "media_type": "image/png", "data": "aGk="}}]},
                                             {"type": "text", "text": "Go on.", "citations": None}]}]
    talk.messages({**common, "messages": history}, beta)
    # a search among tools, whose result points to one; only then can it be called
    history += [{"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "x"},
                                                  {"type": "tool_use", "id": "toolu_2", "name": "ToolSearch", "caller": {"type": "direct"},
                                                   "input": {"query": "a"}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_2",
                                              "content": [{"type": "tool_reference", "tool_name": LONG_NAME}]}]}]
    called = talk.messages({**common, "max_tokens": 150, "tool_choice": {"type": "tool", "name": LONG_NAME}, "messages": history}, beta)
    assert called[-1]["name"] == LONG_NAME, called
    history += [{"role": "assistant", "content": called},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": called[-1]["id"], "content": [
                    {"type": "search_result", "source": "s", "title": "t", "content": [{"type": "text", "text": "none"}]}]}]}]
    talk.messages({**common, "messages": history, "stream": False}, beta)
    assert talk.get("/v1/models?limit=1000", {"anthropic-version": "2023-06-01"})["data"][0]["type"] == "model"


def codex(talk):
    listed = talk.get("/v1/models?client_version=0.99.0")["models"]
    assert {"slug", "display_name", "shell_type", "base_instructions", "context_window", "truncation_policy"} <= set(listed[0])
    tools = [{"type": "function", "name": "shell", "description": "Runs.", "strict": False, "parameters": schema(command=SHORT)},
             {"type": "custom", "name": "apply_patch", "description": "Patches.", "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}},
             {"type": "namespace", "name": "mcp__docs__", "description": "Docs.", "tools": [
                 {"type": "function", "name": "search", "description": "", "strict": False, "parameters": schema(q=SHORT)},
                 {"type": "function", "name": "fetch.page", "description": "", "strict": False, "defer_loading": True, "parameters": schema(u=SHORT)}][:1]},
             {"type": "web_search", "external_web_access": False}, {"type": "image_generation", "output_format": "png"}, {"type": "local_shell"},
             {"type": "tool_search", "execution": "client", "description": "Finds.", "parameters": schema(query=SHORT)}]
    common = {"instructions": "You are a coding agent.", "tools": tools, "tool_choice": "auto", "parallel_tool_calls": True, "store": False,
              "stream": True, "include": ["reasoning.encrypted_content"], "prompt_cache_key": "k", "client_metadata": {"x-installation": "i"},
              "service_tier": "priority", "text": {"verbosity": "low"}, "max_output_tokens": 80}
    user = lambda text: {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
    history = [{"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "<permissions>all</permissions>"}]}, user("What is 3 + 4?")]
    history += talk.response({**common, "reasoning": {"effort": "none", "summary": "auto"}, "input": history})
    history += [user("Run it.")]
    made = talk.response({**common, "input": history, "tool_choice": {"type": "function", "name": "shell"}})
    assert made[-1]["type"] == "function_call" and made[-1]["name"] == "shell", made
    history += made + [{"type": "function_call_output", "call_id": made[-1]["call_id"], "output": [
        {"type": "input_text", "text": BROKEN}, {"type": "input_image", "image_url": "data:image/png;base64,aGk="}]}, user("Patch it.")]
    made = talk.response({**common, "input": history, "tool_choice": {"type": "custom", "name": "apply_patch"}})
    assert made[-1]["type"] == "custom_tool_call" and isinstance(made[-1]["input"], str), made
    history += made + [{"type": "custom_tool_call_output", "call_id": made[-1]["call_id"], "output": "{\"output\":\"Done\"}"}, user("Look it up.")]
    made = talk.response({**common, "input": history, "tool_choice": {"type": "function", "name": "search", "namespace": "mcp__docs__"}})
    assert made[-1]["name"] == "search" and made[-1]["namespace"] == "mcp__docs__", made
    history += made + [{"type": "function_call_output", "call_id": made[-1]["call_id"], "output": "none"},
                       {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "a"}},
                       {"type": "local_shell_call", "call_id": "c9", "status": "completed", "action": {"type": "exec", "command": ["ls"]}},
                       {"type": "local_shell_call_output", "call_id": "c9", "output": "a.c"},
                       {"type": "tool_search_call", "call_id": "c8", "execution": "client", "status": "completed", "arguments": {"query": "b"}},
                       {"type": "tool_search_output", "call_id": "c8", "execution": "client", "status": "completed", "tools": [
                           {"type": "function", "name": "late", "strict": False, "parameters": schema(z=SHORT)}]},
                       {"type": "ghost_snapshot", "ghost_commit": {"id": "0"}}, user("And now?")]
    made = talk.response({**common, "input": history, "tool_choice": {"type": "function", "name": "late"}})
    assert made[-1]["name"] == "late", made
    history += made + [{"type": "function_call_output", "call_id": made[-1]["call_id"], "output": "ok"}]
    talk.response({**common, "stream": False, "input": history})


def copilot_over_ollama(talk):
    version = [int(n) for n in talk.get("/api/version")["version"].split(".")]
    assert version >= [0, 6, 4], version
    talk.ask("GET", "/")
    talk.ask("HEAD", "/")
    talk.model = talk.model if ":" in talk.model else talk.model + ":latest"
    shown = __import__("json").loads(talk.ask("POST", "/api/show", {"model": talk.model}))
    assert "tools" in shown["capabilities"] and any(k.endswith("context_length") for k in shown["model_info"])
    tools = [{"type": "function", "function": {"name": "run_in_terminal", "description": "Runs.", "parameters": schema(command=SHORT)}}]
    # Copilot speaks OpenAI's dialect to Ollama's port
    common = {"tools": tools, "stream": True, "n": 1, "top_p": 1, "temperature": 0.1, "max_tokens": 60, "stream_options": {"include_usage": True}}
    history = [{"role": "system", "content": "You are Copilot."}, {"role": "user", "content": "What is 3 + 4?", "name": "u"}]
    for turn in range(5):
        if turn % 2 == 0:
            text, calls = talk.chat({**common, "messages": history}, "/v1/chat/completions/")
            history += [{"role": "assistant", "content": text, "copilot_cache_control": {"type": "ephemeral"}}, {"role": "user", "content": f"And {turn}?"}]
            continue
        text, calls = talk.chat({**common, "tool_choice": "any", "parallel_tool_calls": False, "messages": history})
        assert calls and calls[0][1] == "run_in_terminal", calls
        history += [{"role": "assistant", "content": None, "tool_calls": [{"id": i, "type": "function", "function": {"name": n, "arguments": a}} for i, n, a in calls]},
                    {"role": "tool", "tool_call_id": calls[0][0], "content": BROKEN}]


def home_assistant(talk):
    talk.ask("HEAD", "/")
    names = [m["name"] for m in talk.get("/api/tags")["models"]]
    assert talk.model.split(":")[0] in names
    tools = [{"type": "function", "function": {"name": "HassTurnOn", "description": "Turns on.", "parameters": {
        "type": "object", "properties": {"name": {"type": "string"}, "brightness": {"type": "integer", "maximum": 18446744073709551616}}, "required": []}}}]
    common = {"tools": tools, "keep_alive": "-1s", "think": False, "stream": True, "options": {
        "num_ctx": 8192, "num_predict": 40, "repeat_last_n": 64, "repeat_penalty": 1.1, "mirostat": 2, "tfs_z": 0.5, "penalize_newline": False, "num_gqa": 8}}
    if talk.model.endswith(":diffusion"):
        del common["options"]["repeat_penalty"]
    history = [{"role": "system", "content": "You are a voice of a house."}]
    for turn in range(5):
        history += [{"role": "user", "content": f"Turn on lamp {turn}.", "images": []}]
        text, _ = talk.ollama("/api/chat", {**common, "messages": history})
        history += [{"role": "assistant", "content": text, "tool_calls": [{"function": {"name": "HassTurnOn", "arguments": {"name": f"lamp {turn}"}}}]},
                    {"role": "tool", "content": "{\"speech\": {}, \"response_type\": \"action_done\"}", "name": "HassTurnOn"}]
        text, _ = talk.ollama("/api/chat", {**common, "messages": history})
        history += [{"role": "assistant", "content": text}]
    talk.ollama("/api/generate", {"prompt": "hi", "options": {"num_predict": 4, "mode": "auto"}, "stream": False})


def opencode(talk):
    tools = [{"type": "function", "function": {"name": "bash", "description": "Runs.", "parameters": {
        "$schema": "https://json-schema.org/draft/2020-12/schema", **schema(command=SHORT)}}}]
    common = {"tools": tools, "tool_choice": "auto", "stream": True, "stream_options": {"include_usage": True}, "max_tokens": 60, "reasoning_effort": "none",
              "verbosity": "low", "store": False, "prompt_cache_key": "s", "usage": {"include": True}}
    history = [{"role": "developer", "content": "You are opencode."}, {"role": "system", "content": [{"type": "text", "text": "Env.", "cache_control": {"type": "ephemeral"}}]}]
    for turn in range(5):
        history += [{"role": "user", "content": [{"type": "text", "text": f"What is 3 + {turn}?"}]}]
        forced = {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "bash"}}]}}}
        text, calls = talk.chat({**common, **(forced if turn == 2 else {}), "messages": history}, "/chat/completions")
        assert calls or turn != 2
        calls = calls or [(f"call_{turn}", "bash", "{\"command\":\"ls\"}")]
        history += [{"role": "assistant", "content": text, "reasoning_content": "hm", "tool_calls": [
            {"id": i, "type": "function", "function": {"name": n, "arguments": a}} for i, n, a in calls]}]
        history += [{"role": "tool", "tool_call_id": i, "content": "a.c"} for i, _, _ in calls]
    talk.chat({**common, "messages": history, "stream": False, "stream_options": None, "n_predict": -1, "max_tokens": None})


def cline(talk):
    """Cline writes its tools into the text, and asks by LM Studio's and llama-server's ways."""
    common = {"stream": True, "temperature": 0, "max_tokens": -1, "cache_prompt": True, "repeat_penalty": 1.0, "typical_p": 1, "mirostat": 0,
              "dry_multiplier": 0, "samplers": [], "id_slot": -1, "stop": ["</execute_command>", "ab"], "stream_options": {"include_usage": True}}
    history = [{"role": "system", "content": "You are Cline. <execute_command>ls</execute_command>"}]
    for turn in range(5):
        history += [{"role": "user", "content": [{"type": "text", "text": f"<task>What is 3 + {turn}?</task>"}, {"type": "text", "text": "<env>" + BROKEN + "</env>"}]}]
        text, _ = talk.chat({**common, "messages": history}, "//v1/chat/completions")
        history += [{"role": "assistant", "content": [{"type": "text", "text": text or "7"}]}]


def aider(talk):
    """Aider edits by text, and its older way calls a function; here by responses that go on from each other."""
    tools = [{"type": "function", "name": "edit", "description": "Edits.", "strict": None, "parameters": schema(path=SHORT, text=SHORT)}]
    common = {"tools": tools, "user": "aider", "metadata": {"a": "b"}, "truncation": "auto", "temperature": 0, "max_output_tokens": 80, "reasoning": {"effort": "none"}}
    before = None
    import json
    for turn in range(5):
        body = {**common, "model": talk.model, "input": [{"role": "user", "content": f"What is 3 + {turn}?"}], "previous_response_id": before,
                "tool_choice": {"type": "function", "name": "edit"} if turn == 2 else "auto"}
        if turn == 3:
            body["input"] = [{"type": "function_call_output", "call_id": call["call_id"], "output": {"ok": True, "n": 12345678901234567890123}}] + body["input"]
        answer = json.loads(talk.ask("POST", "/responses", body))
        before = answer["id"]
        if turn == 2:
            call = answer["output"][-1]
            assert call["name"] == "edit", answer["output"]
    assert json.loads(talk.ask("GET", "/v1/responses/" + before))["id"] == before


IMAGE = "data:image/png;base64," + "aGkh" * 40


def librechat(talk):
    """LibreChat keeps parts of many kinds, and gives results of MCP servers as they came."""
    tools = [{"type": "function", "function": {"name": "search_mcp_docs", "description": "Finds.", "parameters": schema(q=SHORT)}}]
    common = {"tools": tools, "user": "u", "max_tokens": 60.0, "stop": [""], "reasoning_effort": "default", "presence_penalty": 0, "frequency_penalty": 0, "seed": 7.0}
    results = ([{"type": "text", "text": "found"}, {"type": "image_url", "image_url": {"url": IMAGE}}], [{"type": "resource", "resource": {"uri": "file:///a", "text": "hi"}}],
               {"content": [{"type": "text", "text": "x"}], "isError": False}, None, 3)
    said = (None, [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "x"}], [{"type": "refusal", "refusal": "no"}], "x", [])
    history = [{"role": "system", "content": "You are LibreChat."}]
    for turn in range(5):
        history += [{"role": "user", "content": f"What is 3 + {turn}?"}]
        forced = turn == 1
        text, calls = talk.chat({**common, "stream": turn % 2 == 0, "tool_choice": "required" if forced else "auto", "messages": history})
        assert calls or not forced
        calls = calls or [(f"call_{turn}", "search_mcp_docs" if turn < 4 else "other.server/tool", '{"q":')]
        history += [{"role": "assistant", "content": said[turn], "annotations": [], "audio": None, "tool_calls": [
            {"index": k, "id": i, "type": "function", "function": {"name": n, "arguments": a}} for k, (i, n, a) in enumerate(calls)]}]
        history += [{"role": "tool", "tool_call_id": i, "name": n, "content": results[turn]} for i, n, _ in calls]
    talk.chat({**common, "messages": history + [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]})


def open_webui(talk):
    """Open WebUI asks Ollama, and its pipes speak the older way of one function."""
    assert talk.get("/api/version")["version"]
    common = {"keep_alive": "5m", "options": {"num_predict": 20.0, "stop": [""], "num_ctx": 4096.0, "repeat_last_n": 64.0, "seed": 3.0}, "think": "low"}
    history = [{"role": "system", "content": "You are a helper."}]
    talk.model = talk.model.upper()
    for turn in range(5):
        history += [{"role": "user", "content": f"Look {turn}.", "images": []}]
        text, _ = talk.ollama("/api/chat", {**common, "stream": turn % 2 == 0, "messages": history})
        history += [{"role": "assistant", "content": text, "images": ["aGkh"] if turn == 1 else None, "tool_calls": [
                        {"function": {"index": 0, "name": "look", "arguments": ({"n": 1}, '{"n": 1}', None, {}, '{"n":')[turn]}}]},
                    {"role": "tool", "tool_name": "look", "content": ("ok", {"seen": True}, None, "", "x")[turn], "images": ["aGkh"] if turn == 2 else []}]
    talk.ollama("/api/chat", {**common, "stream": False, "messages": history, "options": {"num_predict": 4}})
    older = [{"role": "user", "content": "Go."}, {"role": "assistant", "content": None, "function_call": {"name": "look", "arguments": "{}"}},
             {"role": "function", "name": "look", "content": "seen"}]
    talk.chat({"messages": older, "max_tokens": 4})


def zed(talk):
    """Zed's agent over messages: results hold documents by their place, and what servers ran stays in the history."""
    tools = [{"name": "read_file", "description": "Reads.", "input_schema": schema(path=SHORT)}]
    common = {"max_tokens": 60, "tools": tools, "system": "You are Zed.", "stop_sequences": [""], "thinking": {"type": "disabled"}, "temperature": 1.0}
    results = ([{"type": "document", "source": {"type": "url", "url": "http://a/b.pdf"}}], [{"type": "search_result", "source": "s", "title": "t", "content": []}],
               [{"type": "image", "source": {"type": "url", "url": "http://a"}}, {"type": "text", "text": "x"}], [{"type": "weather", "t": 3}], {"a": 1})
    beside = ({"type": "compaction", "content": None}, {"type": "container_upload", "file_id": "f"}, {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "a"}},
              {"type": "mcp_tool_use", "id": "m1", "name": "a.b", "server_name": "s", "input": {}}, {"type": "redacted_thinking", "data": "aGkh"})
    history = []
    for turn in range(5):
        history += [{"role": "user", "content": f"Read {turn}."}]
        forced = {"tool_choice": {"type": "any", "disable_parallel_tool_use": True}} if turn == 2 else {}
        content = talk.messages({**common, **forced, "stream": turn % 2 == 0, "messages": history})
        uses = [b for b in content if b["type"] == "tool_use"]
        assert uses or turn != 2, content
        uses = uses or [{"type": "tool_use", "id": f"toolu_{turn}", "name": "read_file"}]
        history += [{"role": "assistant", "content": [beside[turn]] + uses},
                    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": u["id"], "content": results[turn]} for u in uses]}]
    talk.messages({**common, "messages": history})


def jetbrains(talk):
    """JetBrains' assistants by responses: items with `id` alone, results without a text, pictures that other servers made."""
    tools = [{"type": "function", "name": "run", "description": "Runs.", "strict": False, "parameters": schema(c=SHORT)}, {"type": "shell"}, {"type": "mcp", "server_label": "s", "server_url": "u"}]
    common = {"tools": tools, "store": False, "max_output_tokens": 60, "reasoning": {"effort": "default"}, "top_p": 1}
    between = ([{"type": "local_shell_call", "id": "l1", "action": {"type": "exec", "command": ["ls"]}}, {"type": "local_shell_call_output", "id": "l1", "output": "a.c"}],
               [{"type": "apply_patch_call", "call_id": "p1", "operation": {"type": "delete_file", "path": "a"}}, {"type": "apply_patch_call_output", "call_id": "p1", "status": "completed"}],
               [{"type": "image_generation_call", "id": "i1", "status": "completed", "result": "aGkh" * 40}],
               [{"type": "code_interpreter_call", "id": "c1", "code": "1", "container_id": "c", "outputs": [{"type": "image", "url": IMAGE}]}],
               [{"type": "computer_call", "call_id": "u1", "action": {"type": "screenshot"}}, {"type": "computer_call_output", "call_id": "u1", "output": {"type": "computer_screenshot", "image_url": IMAGE}}])
    history = []
    for turn in range(5):
        history += [{"role": "user", "content": f"Go {turn}."}]
        made = talk.response({**common, "stream": turn % 2 == 0, "tool_choice": "required" if turn == 3 else "auto", "input": history})
        calls = [i for i in made if i["type"] == "function_call"]
        assert calls or turn != 3, made
        history += made + [{"type": "function_call_output", "call_id": c["call_id"], "output": [{"type": "input_file", "filename": "a", "file_data": IMAGE}]} for c in calls] + between[turn]
    talk.response({**common, "input": history})


PROGRAMS = (claude_code, codex, copilot_over_ollama, home_assistant, opencode, cline, aider, librechat, open_webui, zed, jetbrains)
