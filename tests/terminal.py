#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""tests/terminal.py WEFT: the program on a pseudo-terminal, driven as a person would: help at several widths, chat with a model and
with servers (one that is hostile, one that dies), without UTF-8 and with 20 columns. Prints `N passed, N failed`."""

import fcntl
import http.server
import json
import os
import pty
import re
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time

weft = os.path.realpath(sys.argv[1])
only = sys.argv[2:]
demo = 'model/demo/weft-demo.gguf'
WAIT = 20 if only else 120  # seconds until a step counts as hung
passed = failed = 0
work = tempfile.mkdtemp()


def expect(good, what, shown=''):
    global passed, failed
    if good:
        passed += 1
    else:
        failed += 1
        print('failed:', what, repr(shown)[-600:])


class Terminal:
    """A program on a pseudo-terminal. Everything that it wrote is in `out`."""

    def __init__(self, *args, rows=24, columns=80, env=None, limit_files=False):
        self.out = b''
        self.seen = 0
        environment = {k: v for k, v in os.environ.items() if not k.startswith(('WEFT_', 'LC_', 'NO_COLOR'))}
        environment.update(TERM='xterm', LC_ALL='C.UTF-8', HOME=work, XDG_STATE_HOME=work + '/state', WEFT_CONFIG='/dev/null')
        environment.update(env or {})
        self.master, slave = pty.openpty()
        self.slave = slave  # stays open, so that the settings can be read when the program has ended
        self.resize(rows, columns)
        self.before = termios.tcgetattr(slave)

        def prepare():
            os.setsid()
            fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
            if limit_files:
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (16, 16))

        self.process = subprocess.Popen([weft, *args], stdin=slave, stdout=slave, stderr=slave, env=environment, preexec_fn=prepare)

    def resize(self, rows, columns):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack('HHHH', rows, columns, 0, 0))

    def read(self, seconds):
        if select.select([self.master], [], [], seconds)[0]:
            self.out += os.read(self.master, 65536)
            return True
        return False

    def wait(self, words, seconds=WAIT):
        """Until the words came, after those that were waited for before. A line may be wrapped between them."""
        pattern = re.compile(re.sub(rb'(?<=\S)\\ (?=\S)', rb'(?: |\\r\\n *)', re.escape(words.encode())))
        end = time.monotonic() + seconds
        while (at := pattern.search(self.out, self.seen)) is None:
            if time.monotonic() > end:
                expect(False, f'waiting for {words}', self.out[self.seen:])
                return False
            if not self.read(0.2) and self.process.poll() is not None and not self.read(0.2):
                expect(False, f'ended while waiting for {words}', self.out[self.seen:])
                return False
        self.seen = at.end()
        return True

    def prompt(self):
        """Until a line can be typed. The line editor writes its prompt before it takes the terminal over, and a key between these, such
        as Ctrl-D, would be the terminal's own."""
        self.wait('> ')
        end = time.monotonic() + WAIT
        while b'\x1b[?2004h' in self.out and self.process.poll() is None and termios.tcgetattr(self.slave)[3] & termios.ICANON:
            if time.monotonic() > end:
                expect(False, 'a prompt that no line can be typed at', self.out[self.seen:])
                return
            time.sleep(0.001)

    def send(self, text):
        os.write(self.master, text.encode() if isinstance(text, str) else text)

    def ask(self, line, words):
        """Types a line and waits for words, and for the prompt behind them."""
        self.send(line + '\r')
        self.wait('\n')  # the echo
        good = self.wait(words)
        self.prompt()
        return good

    def end(self, code, what):
        limit = time.monotonic() + WAIT
        while self.process.poll() is None and time.monotonic() < limit:
            self.read(0.1)
        if self.process.poll() is None:
            self.process.kill()
        got = self.process.wait()
        while self.read(0):
            pass
        expect(got == code, f'{what}: exit code {got}, not {code}', self.out)
        expect(termios.tcgetattr(self.slave) == self.before, f'{what}: the terminal is not as it was')
        os.close(self.master)
        os.close(self.slave)


def start_server(port=0, *args):
    server = subprocess.Popen([weft, 'serve', demo, '--port', str(port), '--json', '--config', '/dev/null', '--kv-mib', '16', *args],
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return server, json.loads(server.stdout.readline())['port']


def help_is_wrapped():
    for columns in (20, 80, 200):
        for words in ([], ['serve'], ['chat'], ['top'], ['bench']):
            t = Terminal('help', *words, columns=columns)
            t.end(0, 'help')
            text = t.out.decode().replace('\r', '')
            wide = [x for x in text.split('\n') if len(x) > columns and ' ' in x.strip() and not re.match(r'  (weft|WEFT|--|-.,)', x)]
            expect(not wide and len(text) > 100, f'help {words} at {columns} columns', wide)
    t = Terminal('serve', '--help')
    t.end(0, 'serve --help')
    expect(b'port to listen on; 0 picks a free' in t.out, 'serve --help', t.out)


def chat_with_a_model():
    for columns, env in ((20, {}), (80, {}), (200, {}), (80, {'LC_ALL': 'C'}), (80, {'NO_COLOR': '1'}), (80, {'TERM': 'dumb'})):
        t = Terminal('chat', demo, '--seed', '1', columns=columns, env=env)
        t.wait('weft-demo')
        t.prompt()
        t.ask('/help', '/temperature')
        t.ask('/?', '/temperature')
        t.ask('', '')
        t.ask('What is 58 + 37?', '95')
        t.ask('/mode ar', 'autoregressive')
        t.ask('/mode', 'autoregressive')
        t.ask('/temperature 0', 'is 0')
        t.ask('/temperature -3', 'must be a number')
        t.ask('/temperatur', 'did you mean /temperature?') if columns >= 80 else None
        t.ask('/model weft-dmeo', 'weft-demo') if columns >= 80 else None
        t.ask('/dance', '/help lists them') if columns >= 80 else None
        t.ask('What is 58 + 37?', '95')
        t.ask('/clear', 'forgotten')
        t.send('/exit\r')
        t.end(0, f'chat at {columns} columns, {env}')
        styled = re.search(rb'\x1b\[(1|2|90|36)m', t.out) is not None
        expect(styled == (env in ({}, {'LC_ALL': 'C'})), f'colours at {columns}, {env}', t.out)
        if env.get('TERM') == 'dumb':
            expect(b'\x1b' not in t.out, 'a dumb terminal', t.out)


def names_of_files_are_hostile():
    name = work + '/m\x1b]0;owned\x07\n.gguf'
    if not os.path.exists(name):
        os.symlink(os.path.realpath(demo), name)
    t = Terminal('run', name, '--mode', 'ar', '--temperature', '0')
    t.wait('m?]0;owned?')
    t.prompt()
    t.ask('/model', 'm?]0;owned?')
    t.ask('/load \x1b[200~\x1b]0;owned\x07\x1b[201~', 'No such file')
    t.ask('What is 58 + 37?', '95')
    t.send('/exit\r')
    t.end(0, 'a hostile name of a file')
    for args in (['generate', name, '--chat', '-p', 'What is 58 + 37?', '-v'], ['inspect', name], ['serve', name, '--port', '99999'],
                 ['chat', work + '/none\x1b]0;owned\x07.gguf'], ['dance\x1b]0;owned\x07'], ['help', '\x1b]0;owned\x07'],
                 ['serve', '--\x1b]0;owned\x07'], ['chat', '--url', 'http://\x1b]0;owned\x07']):
        t2 = Terminal(*args)
        limit = time.monotonic() + WAIT
        while t2.process.poll() is None and time.monotonic() < limit:
            t2.read(0.1)
        t2.end(t2.process.poll(), f'{args[0]} with a hostile name')
        expect(b'\x1b]' not in t2.out and b'\x07' not in t2.out, f'{args} reached the terminal', t2.out)
    expect(b'\x1b]' not in t.out and b'\x07' not in t.out, 'a hostile name of a file reached the terminal', t.out)


def chat_edits_lines():
    t = Terminal('chat', demo, '--seed', '1', '--mode', 'ar', '--temperature', '0')
    t.prompt()
    if b'\x1b[?2004h' not in t.out:
        print('chat_edits_lines: this build has no line editor: left out')
        t.send('/exit\r')
        t.end(0, 'chat')
        return
    t.send('/tem\t')
    t.wait('perature ')
    t.send('0.5\r')
    t.wait('is 0.5')
    t.prompt()
    t.send('/model we\t')
    t.wait('ft-demo ')
    t.send('\r')
    t.wait('The model is')
    t.prompt()
    t.send('\x1b[200~What is 58\r+ 37?\x1b[201~')  # a paste of two lines is one question
    t.wait('+ 37?')
    t.send('\r')
    t.prompt()
    t.send('/save ' + work + '/pasted.json\r')
    t.wait('Saved')
    t.prompt()
    t.send('/sytem\x1b[D\x1b[D\x1b[Ds\r')  # left, and a letter in the middle
    t.wait('The system text is empty')
    t.prompt()
    t.send('continued\\\rand ended\\\rhere\x03')  # Ctrl-C drops a line, and does not end the chat
    t.wait('Ctrl-C again')
    t.prompt()
    t.send('\x04')
    t.end(0, 'chat that edits lines')
    with open(work + '/pasted.json') as file:
        said = json.load(file)['messages']
    expect(said[0] == {'role': 'user', 'content': 'What is 58\n+ 37?'} and len(said) == 2, 'a paste', said)
    t = Terminal('chat', demo)
    t.prompt()
    t.send('\x1b[A')  # the last line of the session before
    t.wait('/sys')
    t.send('\x03')
    t.wait('Ctrl-C again')
    t.prompt()
    t.send('\x03')
    t.end(130, 'Ctrl-C twice')
    expect(os.stat(work + '/state/weft/chat-history').st_mode & 0o777 == 0o600, 'the history is of the user alone')


def an_answer_is_stopped():
    t = Terminal('chat', demo, '--mode', 'ar', '-c', '2048', '-n', '1900', '--system', 'x')
    t.prompt()
    t.send('List all numbers from 100 to 160.\r')
    t.wait('100 101')
    t.send('\x03')
    t.prompt()
    t.ask('What is 58 + 37?', '95')
    t.send('/exit\r')
    t.end(0, 'an answer that was stopped')


def a_full_context_asks():
    for columns in (80, 20):
        t = Terminal('chat', demo, '-c', '128', '--seed', '1', '--mode', 'ar', '--temperature', '0', columns=columns)
        t.prompt()
        for _ in range(20):
            t.send('List all numbers from 34 to 49.\r')
            t.prompt()
            if b'drop> ' in t.out:
                break
        expect(b'drop> ' in t.out, 'a full context asks', t.out)
        t.send('and how many is 3 + 4?\r')  # no answer to that question: nothing is dropped for its first letter
        t.wait('Say o')
        t.wait('drop> ')
        t.send('all\r')
        t.wait('dropped.')
        t.wait('49')
        t.prompt()
        t.ask('/model', 'weft-demo')
        t.send('1 ' * 200 + '\r')  # one question that is too long by itself
        t.wait('drop> ')
        t.send('n\r')
        t.wait('was not asked')
        t.prompt()
        t.ask('/clear', 'forgotten')
        t.ask('1 ' * 200, 'was not asked')  # there is nothing to drop
        t.send('/exit\r')
        t.end(0, 'a full context')


def conversations_are_kept():
    t = Terminal('chat', demo, '--mode', 'ar', '--temperature', '0', '--system', 'Be short.')
    t.prompt()
    t.ask('What is 58 + 37?', '95')
    t.ask('/save ' + work + '/said.json', 'Saved')
    t.ask('/save ' + work, 'no conversation')
    t.ask('/save /proc/none/at/all', 'not saved')
    t.ask('/load ' + work + '/none.json', 'No such file')
    for name, content in (('broken', '{"messages": ['), ('other', '{"messages": [{"role": "tool", "content": "x"}]}'), ('list', '[]'),
                          ('nul', '{"messages": [{"role": "user", "content": "a\\u0000b"}]}'), ('binary', '\x00\x01')):
        with open(f'{work}/{name}.json', 'w') as file:
            file.write(content)
        t.ask(f'/load {work}/{name}.json', f'/load: {work}/{name}.json')
        t.ask(f'/save {work}/{name}.json', 'is there and is no conversation')
    with open(work + '/escapes.json', 'w') as file:
        json.dump({'messages': [{'role': 'system', 'content': 'a\x1b]0;owned\x07b\x9bc'}, {'role': 'user', 'content': 'hello'}]}, file)
    t.ask(f'/load {work}/escapes.json', '1 questions')
    t.ask('/system', 'a?]0;owned?b?c')
    t.ask('/system none', 'empty')
    t.ask(f'/load {work}/said.json', '1 questions')
    t.ask('/system', 'Be short.')
    t.send('/exit\r')
    t.end(0, 'conversations')
    with open(work + '/said.json') as file:
        roles = [m['role'] for m in json.load(file)['messages']]
    expect(roles == ['system', 'user', 'assistant'], 'what was saved', roles)
    t = Terminal('chat', demo, '--mode', 'ar', '--temperature', '0', limit_files=True)  # as a disk that is full
    t.prompt()
    t.ask('What is 58 + 37?', '95')
    t.ask(f'/save {work}/said.json', 'was not saved')
    t.send('/exit\r')
    t.end(0, 'a full disk')
    with open(work + '/said.json') as file:
        expect(len(json.load(file)['messages']) == 3, 'a full disk leaves the old file')
    expect(not os.path.exists(work + '/said.json.new'), 'a full disk leaves nothing behind')


def chat_with_a_server():
    server, port = start_server()
    t = Terminal('chat', '--url', f'http://127.0.0.1:{port}', '--seed', '1', '--temperature', '0')
    t.wait('weft-demo')
    t.prompt()
    t.ask('List all numbers from 34 to 49.', '48 49')
    expect(b'accepted]' in t.out, 'canvases of a server', t.out)
    t.ask('/mode ar', 'autoregressive')
    t.ask('What is 58 + 37?', '95')
    t.send('1 ' * 3000 + '\r')  # too long: the server says so
    t.wait('drop> ')
    t.send('n\r')
    t.wait('was not asked')
    t.prompt()
    server.kill()
    server.wait()
    t.ask('What is 58 + 37?', f'no server answers at http://127.0.0.1:{port}')
    server, port = start_server(port)
    t.ask('What is 58 + 37?', '95')
    t.send('/exit\r')
    t.end(0, 'chat with a server')
    server.kill()
    server.wait()
    for url, words, code in ((f'http://127.0.0.1:{port}', 'no server answers', 4), ('ftp://x', 'is no URL', 2), ('http://a b/', 'is no URL', 2),
                             ('http://[::1', 'is no URL', 2), ('http://127.0.0.1:99999', 'is no URL', 2)):
        t = Terminal('chat', '--url', url)
        t.wait(words)
        t.end(code, f'--url {url}')


def chat_over_a_socket():
    path = work + '/socket'
    server = subprocess.Popen([weft, 'serve', demo, '--host', 'unix:' + path, '-q', '--config', '/dev/null', '--kv-mib', '16'], stderr=subprocess.PIPE)
    server.stderr.readline()  # it serves
    t = Terminal('chat', '--url', 'unix:' + path, '--temperature', '0', '--mode', 'ar')
    t.prompt()
    t.ask('What is 58 + 37?', '95')
    t.send('/exit\r')
    t.end(0, 'chat over a unix socket')
    got = subprocess.run([weft, 'top', '--url', 'unix:' + path, '--json'], capture_output=True, timeout=WAIT)
    expect(got.returncode == 0 and json.loads(got.stdout)['server'] == 'unix:' + path, 'top over a unix socket', got)
    server.kill()
    server.wait()


def lines_break_between_words():
    for columns in (40, 80):
        t = Terminal('serve', demo, '--port', '0', '--kv-mib', '16', '--config', '/dev/null', columns=columns)
        t.wait('a second one cancels it')
        t.process.terminate()
        t.end(0, 'serve')
        lines = t.out.decode().replace('\r', '').split('\n')
        wide = [line for line in lines if len(line) > columns and ' ' in line.strip()]
        expect(not wide and any(line.startswith('  ') for line in lines), f'the start on {columns} columns', lines)
        whole = ' '.join(' '.join(lines).split())
        expect('weft: pool 16 MiB of keys and values (--kv-mib) weft: room at once for' in whole, 'what the start says', whole)
    got = subprocess.run([weft, 'chat', '--url', 'ftp://x'], capture_output=True, timeout=WAIT)
    expect(got.stderr.count(b'\n') == 1 and len(got.stderr) > 80, 'one line where no terminal is', got.stderr)


def chat_over_tls():
    cert, key = work + '/cert.pem', work + '/key.pem'
    subprocess.run(['openssl', 'req', '-x509', '-newkey', 'rsa:2048', '-nodes', '-keyout', key, '-out', cert, '-days', '2', '-subj', '/CN=weft'],
                   check=True, capture_output=True)
    server, port = start_server(0, '--tls-cert', cert, '--tls-key', key)
    t = Terminal('chat', '--url', f'https://127.0.0.1:{port}/', '--tls-cert', cert, '--temperature', '0', '--mode', 'ar')
    t.prompt()
    t.ask('What is 58 + 37?', '95')
    t.send('/exit\r')
    t.end(0, 'chat over TLS')
    t = Terminal('chat', '--url', f'https://127.0.0.1:{port}/')  # nobody whom the system trusts has signed it
    t.wait('--tls-cert FILE names one')
    t.end(4, 'a certificate that is not trusted')
    server.kill()
    server.wait()


ESCAPE = '\x1b]0;owned\x07\x1b[2J\x9b31m'


class Hostile(http.server.BaseHTTPRequestHandler):
    """Another server: escapes in everything it says, and ways to break off."""
    asked, left = [], []

    def log_message(self, *_):
        pass

    def answer(self, code, body, **headers):
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name.replace('_', '-'), value)
        self.send_header('Connection', 'close')
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        models = {'data': [{'id': f'm{ESCAPE}'}, {'id': 'new\nline'}, {'id': 5}, {'id': 'x' * 300}, {'id': 'w', 'owned_by': 'weft'}]}
        self.answer(200, json.dumps(models).encode(), Content_Type='application/json')

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers['Content-Length'])))
        Hostile.asked.append(body)
        question = body['messages'][-1]['content']
        if question == 'refuse':
            self.answer(400, json.dumps({'error': {'message': 'no' + ESCAPE}}).encode())
        elif question == 'garbage':
            self.wfile.write(b'\x1b[2J\x00\xff' * 50)
        elif question == 'head':
            self.wfile.write(b'HTTP/1.1 ' + b'9' * 200000)
        elif question == 'chunks':
            self.answer(200, b'fffffffffffffff\r\ndata: {}\n', Transfer_Encoding='chunked')
        elif question == 'hang':
            self.answer(200, b'data: {"choices":[{"delta":{"content":"begun "}}]}\n\n')
            self.wfile.flush()
            Hostile.left.append(select.select([self.connection], [], [], WAIT)[0] != [])  # true: who asked has gone
        elif question == 'length':
            self.answer(200, b'data: {"choices":[{"delta":{"content":"half"}}]}\n\n', Content_Length='100000')
        else:
            lines = [{'choices': [{'delta': {'content': f'said {ESCAPE}'}}]}, {'choices': []}, {'choices': 5}, [], None,
                     {'choices': [{'delta': {'reasoning_content': f'thought {ESCAPE}'}, 'finish_reason': 5}]},
                     {'choices': [{'delta': {'content': ' and done'}, 'finish_reason': 'stop'}]}]
            events = b''.join(b'data: ' + json.dumps(x).encode() + b'\r\n\r\n' for x in lines)
            canvas = {'text': ESCAPE, 'pieces': [ESCAPE, 5, None], 'noise': [None, ESCAPE], 'drawn': 7, 'step': -1, 'positions': 10**15}
            event = b'event: replace\ndata: ' + json.dumps(canvas).encode() + b'\n\n'
            self.answer(200, event + events + b'data: {"choices":[{"delta":{"content":"\xff\n\ndata: [DONE]\n\n')


def a_hostile_server():
    server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Hostile)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    given = {'--top-p': ('top_p', 0.5), '--top-k': ('top_k', 7), '--seed': ('seed', 3), '--max-tokens': ('max_tokens', 9), '--min-p': ('min_p', 0.25),
             '--stop': ('stop', 'END'), '--presence-penalty': ('presence_penalty', 1.5), '--diffusion-steps': ('diffusion', 5)}
    words = [str(word) for option, (_, value) in given.items() for word in (option, value)]
    for env in ({}, {'LC_ALL': 'C'}):
        t = Terminal('chat', '--url', f'http://127.0.0.1:{server.server_port}/v1/', *words, '--thinking', env=env)
        t.wait('m?]0;owned')
        t.prompt()
        t.ask('hello', '(thinking) thought')
        expect(b'said ?]0;owned??[2J?31m(thinking) thought ?]0;owned??[2J?31m\r\n\r\n and done' in t.out, 'where thinking ends', t.out)
        t.ask('refuse', 'HTTP status 400: no')
        for question in ('garbage', 'head', 'chunks', 'length'):
            t.ask(question, 'broke off')
        t.send('hang\r')
        t.wait('begun ')
        t.send('\x03')  # ends the answer, and nothing else
        t.prompt()
        expect(b'Ctrl-C again' not in t.out, 'Ctrl-C during an answer', t.out)
        t.ask('/model', 'm?]0;owned')
        t.ask('/model x', 'no model is named')
        t.ask('hello', 'and done')
        t.ask('/model w', 'The model is w')
        t.ask('hello', 'and done')  # with canvases
        expect(b'[canvas 1, step 1: 0 of 0 accepted]' in t.out, 'a canvas of a hostile server', t.out)
        t.send('/exit\r')
        t.end(0, 'a hostile server')
        for bad in (b'\x1b]', b'\x07', b'\x1b[2J', b'\x9b31', b'\xc2\x9b'):
            expect(bad not in t.out.replace(b'"\x9b', b''), f'{bad} of a server reached the terminal', t.out)
    asked = dict(Hostile.asked[0], stop=Hostile.asked[0]['stop'][0], diffusion=Hostile.asked[0]['diffusion']['steps'])
    expect(all(asked[name] == value for name, value in given.values()), 'options in a request', asked)
    expect(asked['chat_template_kwargs'] == {'enable_thinking': True} and 'temperature' not in asked, 'thinking in a request', asked)
    expect('mode' not in Hostile.asked[0] and 'stream_canvas' not in Hostile.asked[0], 'what only weft takes', Hostile.asked[0])
    expect([m['role'] for m in Hostile.asked[-1]['messages']] == ['user', 'assistant'] * 3 + ['user'], 'questions without an answer are not kept', Hostile.asked[-1])
    server.shutdown()
    expect(Hostile.left == [True, True] and Hostile.asked[-1]['messages'][3]['content'] == 'begun ', 'an answer that was stopped', Hostile.left)
    silent = socket.create_server(('127.0.0.1', 0))  # takes connections and says nothing
    t = Terminal('chat', '--url', f'http://127.0.0.1:{silent.getsockname()[1]}')
    time.sleep(0.5)
    t.send('\x03')
    t.end(-signal.SIGINT, 'a silent server, and Ctrl-C')
    silent.close()


def the_size_changes():
    t = Terminal('chat', demo, '--seed', '1')
    t.prompt()
    for rows, columns in ((10, 40), (5, 20), (3, 10), (50, 200), (24, 80)):
        t.resize(rows, columns)
        t.ask('What is 58 + 37?', '95')
    t.send('List all numbers from 34 to 49.\r')
    t.resize(12, 33)
    t.wait('49')
    t.prompt()
    t.send('/exit\r')
    t.end(0, 'a terminal that changes its size')


def lines_from_a_pipe():
    def run(text, *args):
        return subprocess.run([weft, 'chat', demo, '--mode', 'ar', '--temperature', '0', *args], input=text.encode(), capture_output=True, timeout=WAIT)

    got = run('What is 58 + 37?\n\n/mode\nWhat is 58 \\\n+ 37?')
    expect(got.returncode == 0 and got.stdout.count(b'\n') == 3 and b'> ' not in got.stdout and b'\x1b' not in got.stdout, 'a pipe', got)
    got = run('1 ' * 200 + '\nWhat is 58 + 37?\n', '-c', '128')
    expect(got.returncode == 2 and b'95' not in got.stdout and got.stderr.count(b'\n') == 1, 'a pipe with a question that is too long', got)
    got = run('What is\x1b[2J 58 + 37?\r\n\x00\x07\n/system\x1b a\x7fb\n')
    expect(got.returncode == 0 and b'ab.' in got.stdout, 'control characters from a pipe', got)
    got = run('')
    expect(got.returncode == 0 and got.stdout == b'', 'an empty pipe', got)


def drawn(out):
    """The views that were drawn, each as its lines without styles."""
    text = re.sub(r'\x1b\[[0-9;?]*[mKJhl]', '', out.decode('utf-8', 'replace').replace('\r', ''))
    return [view.split('\n') for view in text.split('\x1b[H')[1:]]


def top_is_live():
    keys = work + '/tenants'
    with open(keys, 'w') as file:
        file.write('key-operator operator\nkey-red red\nkey-blue blue\n')
    with open(work + '/operator', 'w') as file:
        file.write('key-operator\n')
    args = ('--api-keys', keys, '--context', '2048')
    server, port = start_server(0, *args)
    more = threading.Event()

    def ask_always():  # one answer after another, each longer than a view
        body = json.dumps({'prompt': [5, 6, 7], 'max_tokens': 2000, 'ignore_eos': True, 'mode': 'autoregressive', 'stream': True}).encode()
        while not more.is_set():
            try:
                with socket.create_connection(('127.0.0.1', port), timeout=5) as s:
                    s.sendall(b'POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer key-red\r\nConnection: close\r\n'
                              b'Content-Length: %d\r\n\r\n' % len(body) + body)
                    while s.recv(65536) and not more.is_set():
                        pass
            except OSError:
                time.sleep(0.05)

    load = threading.Thread(target=ask_always)
    load.start()
    asks = ('top', '--port', str(port), '--key-file', work + '/operator', '--interval', '0.2')
    answered = []
    for _ in range(20):
        got = subprocess.run([weft, *asks, '--json'], capture_output=True, timeout=WAIT)
        answered.append(json.loads(got.stdout))
        red = next((x for x in answered[-1]['tenants'] if x['name'] == 'red'), {})
        if red.get('running') == 1 and red.get('ended_per_second') == 0 and red.get('answer_tokens_per_second', 0) > 0:
            break
    else:
        expect(False, 'the rate of a tenant whose request runs', answered[-2:])
    expect({'server', 'pages', 'steps_per_second', 'first_token_p50_ms', 'models'} <= answered[-1].keys(), 'top --json', answered[-1])
    for rows, columns in ((24, 80), (10, 20), (4, 12), (50, 200)):
        t = Terminal(*asks, rows=rows, columns=columns)
        t.wait('weft at')
        t.send('h')
        if columns >= 80:
            t.wait('q leave')
            t.send('ni')
            t.wait('(now n)')
            t.wait('weft at')
            t.wait('weft at')
            names = [line.split()[0] for line in drawn(t.out)[-2] if re.match('(red|blue|operator) ', line)]
            t.send(' ')
            t.wait('paused')
            t.send(' hn')
        t.resize(rows + 1, columns)
        time.sleep(0.5)
        t.send('q')
        t.end(0, f'top at {columns} columns')
        views = drawn(t.out)
        expect(t.out.endswith(b'\x1b[?25h\x1b[?1049l'), 'top leaves its screen', t.out[-40:])
        wide = [line for view in views[:-1] for line in view if len(line) > columns]
        high = [len(view) for view in views[:-1] if len(view) > rows + 1]
        expect(not wide and not high and len(views) > 1, f'top at {columns} by {rows}', (wide[:1], high[:1]))
        if columns >= 80:
            expect(names == sorted(names, reverse=True) and len(names) == 3, 'tenants by name, reversed', names)
    t = Terminal(*asks)
    t.wait('weft at')
    server.kill()
    server.wait()
    t.wait('no server answers')
    t.wait('looking again')
    server, port = start_server(port, *args)
    t.seen = len(t.out)
    limit = time.monotonic() + WAIT
    while any('no server' in line for line in drawn(t.out)[-1]) and time.monotonic() < limit:
        t.read(0.1)
    expect(not any('no server' in line for line in drawn(t.out)[-1]), 'a server that comes back', t.out[-400:])
    t.send('\x03')
    t.end(0, 'top, Ctrl-C')
    more.set()
    load.join()
    server.kill()
    server.wait()
    got = subprocess.run([weft, *asks], capture_output=True, timeout=WAIT)
    expect(got.returncode == 4 and b'no server answers' in got.stderr and got.stdout == b'', 'top without a server', got)


def the_demo_moves():
    """On a terminal each step of the canvas over the one before; elsewhere each as a line, as noise becomes an answer."""
    answer = 'duck happy fox corn soup rice'
    t = Terminal('demo', demo, 'model/demo/weft-demo-ar.gguf')
    t.wait('slowed down')
    for words in ('step 1 of', 'step 2 of', 'step 3 of', answer, 'steps)', 'clients', 'Try it:'):
        t.wait(words)
    t.end(0, 'demo')
    expect(t.out.count(b'\x1b8') >= 3, 'a canvas over itself', t.out[:2000])
    got = subprocess.run([weft, 'demo', demo, 'model/demo/weft-demo-ar.gguf'], capture_output=True, timeout=10 * WAIT)
    steps = re.findall(rb'  step +\d+  (.*)\n', got.stdout)
    expect(got.returncode == 0 and b'\x1b' not in got.stdout, 'demo in a pipe', got)
    expect(b'mixed' in got.stdout + got.stderr and b'guesses right' in got.stdout + got.stderr, 'what the demo counts', got)
    expect(len(steps) >= 3 and b'_' in steps[0] and steps[0] != steps[-1] == answer.encode(), 'a line for each step', got.stdout)


tests = [top_is_live, names_of_files_are_hostile, help_is_wrapped, chat_with_a_model, chat_edits_lines, an_answer_is_stopped, a_full_context_asks, conversations_are_kept,
         chat_with_a_server, chat_over_a_socket, lines_break_between_words, chat_over_tls, a_hostile_server, the_size_changes, lines_from_a_pipe, the_demo_moves]
for test in tests:
    if not only or test.__name__ in only:
        test()
print(f'{passed} passed, {failed} failed')
sys.exit(1 if failed else 0)
