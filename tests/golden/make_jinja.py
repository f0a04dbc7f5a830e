# SPDX-License-Identifier: MIT
"""Makes jinja/constructs.jsonl and jinja/conversations.jsonl with what Python's jinja2 prints: small templates that
together use everything that model/text/jinja.h supports, and our own templates over the conversations of jinja_oracle.py.

    python make_jinja.py
"""

import json
import os

import jinja_oracle as oracle

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "jinja")

VALUES = {
    "s": "Hello, World", "u": "  \u00e9t\u00e9 \u00df \u0416\u0443\u043a \U0001f600 \u3000", "e": "", "n": 7, "z": 0, "f": 2.5, "t": True, "no": None,
    "list": [3, 1, 2], "words": ["b", "A", "c", "a"], "empty": [], "map": {"b": 2, "a": 1, "items": "own", "A": 0},
    "deep": {"x": {"y": [{"z": "end"}]}}, "people": [{"name": "Ann", "age": 30, "in": {"a": 1}}, {"name": "bob", "age": 25, "in": {"a": 3}},
                                                      {"name": "Cy", "in": {"a": 2}}],
    "lines": "one\n  two\n\nthree\n", "odd": "a\r\nb\rc\u2028d\x0be", "quotes": "it's \"so\" \\ <b>&</b> \x07 \u200b \t",
    "number_text": " 42 ", "float_text": "1.5e3", "big": 9007199254740993, "floats": [1.0, 0.1, 1e16, 1e-5, 123456.789, -0.0, 1e300, 100.0],
    "think": "<think>\nwhy\n</think>\n\nthen",
}

# Each is one template. A line that begins with "!" must be refused by both.
SNIPPETS = r"""
{{ s }}|{{ n }}|{{ f }}|{{ t }}|{{ no }}|{{ missing }}|{{ list }}|{{ map }}|{{ deep }}|{{ quotes }}
{{ (1, 'a', none) }} {{ (1,) }} {{ () }} {{ [] }} {{ {} }} {{ [quotes, true, 1.5] }} {{ {'a': 1, 2: [3]} }}
{{ floats }} {{ big }} {{ -n }} {{ +n }} {{ - -n }} {{ 1_000 }} {{ 1e3 }} {{ 2.50 }}
{{ 7 + 2 }} {{ 7 - 2 }} {{ 7 * 2 }} {{ 7 / 2 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ 7.5 // 2 }} {{ 7.5 % 2 }}
{{ 1 + 2 * 3 - 4 / 2 }} {{ (1 + 2) * 3 }} {{ 2 ** 3 ** 2 }} {{ -2 ** 2 }} {{ 1 ~ 2 ~ 'a' ~ none ~ missing }}
{{ 'a' + 'b' 'c' }} {{ 'ab' * 3 }} {{ 3 * 'ab' }} {{ [1] + [2] }} {{ [1, 2] * 2 }} {{ (1,) + (2,) }} {{ 'a' * 0 }} {{ true + 1 }}
!{{ 'a' + 1 }}
!{{ none + 'a' }}
!{{ 1 / 0 }}
!{{ 1 % 0 }}
!{{ missing + 1 }}
!{{ missing.x }}
!{{ missing['x'] }}
!{{ missing() }}
!{{ s.nothing() }}
!{{ no.x.y }}
!{{ [1] < 1 }}
!{{ 'a' < 1 }}
!{{ 1 in 2 }}
!{{ none | length }}
!{{ messages | append(1) }}
!{% set list.x = 1 %}
!{{ raise_exception('no: ' ~ s) }}
!{% for x in 3 %}{% endfor %}
!{{ range(200000) }}
!{{ list.append(4) }}
!{{ map.pop('a') }}
!{{ 'abc'.index('z') }}
!{% set a, b = [1, 2, 3] %}
!{{ {}[[1]] is defined }}{{ {[1]: 2} }}
{{ 1 == 1.0 }} {{ true == 1 }} {{ 'a' != 'b' }} {{ 1 < 2 < 3 }} {{ 1 < 3 > 2 }} {{ [1, 2] == [1, 2] }} {{ {'a': 1} == {'a': 1.0} }} {{ none == missing }} {{ missing == missing }} {{ [1] < [1, 2] }} {{ 'a' < 'b' }} {{ 'b' >= 'a' }}
{{ 'lo' in s }} {{ 'x' not in s }} {{ 1 in list }} {{ 'a' in map }} {{ 2 in map }} {{ 'a' in missing }} {{ [1] in [[1]] }}
{{ not t }} {{ not not e }} {{ t and 'x' }} {{ e or 'y' }} {{ e and 1 }} {{ 1 and 2 and 0 or 'z' }} {{ not e and t }} {{ not 1 == 2 }}
{{ 'a' if t else 'b' }} {{ 'a' if e else 'b' }} {{ 'a' if e }} {{ 'a' if e else 'b' if e else 'c' }} {{ ('a' if t) ~ 'b' }}
{{ s[0] }}{{ s[-1] }}{{ u[2] }}{{ u[-1] }}|{{ s[99] }}|{{ s[1:4] }} {{ s[:-3] }} {{ s[-3:] }} {{ s[::-1] }} {{ s[::2] }} {{ s[10:2:-3] }} {{ u[2:5] }} {{ s[5:2] }}|{{ s[:] }} {{ s[-99:99] }}
{{ list[0] }} {{ list[-1] }} {{ list[5] }} {{ list[1:] }} {{ list[::-1] }} {{ list[:1] }} {{ list[-2:] }} {{ list[::2] }} {{ (1, 2, 3)[1:] }} {{ range(5)[1:3] | list }} {{ list[2:0:-1] }}
{{ map.a }} {{ map['b'] }} {{ map.zzz }} {{ map.items is callable }} {{ map['items'] }} {{ map.get('a') }} {{ map.get('q') }} {{ map.get('q', 'd') }} {{ deep.x.y[0].z }} {{ deep['x'].y.0.z }} {{ s.foo }}
{{ s.upper is defined }} {{ map.q is defined }} {{ missing is defined }} {{ missing is undefined }} {{ no is none }} {{ no is not none }} {{ t is true }} {{ z is false }} {{ t is boolean }} {{ n is boolean }}
{{ s is string }} {{ n is number }} {{ t is number }} {{ f is float }} {{ n is integer }} {{ t is integer }} {{ map is mapping }} {{ list is sequence }} {{ map is sequence }} {{ missing is sequence }} {{ n is sequence }} {{ s is iterable }} {{ n is iterable }} {{ missing is iterable }} {{ list is mapping }} {{ range is callable }} {{ s is callable }}
{{ n is odd }} {{ n is even }} {{ 9 is divisibleby 3 }} {{ 9 is divisibleby(2) }} {{ n is eq 7 }} {{ n is equalto(8) }} {{ n is ne 8 }} {{ n is gt 3 }} {{ n is ge 7 }} {{ n is lt 3 }} {{ n is le 7 }} {{ n is in list }} {{ 1 is in [1] }} {{ 'ab' is lower }} {{ 'aB' is lower }} {{ 'AB' is upper }} {{ '12' is upper }} {{ no is sameas none }} {{ 1 is sameas true }}
{{ not s is string }} {{ s is not string }} {{ s is string and n is number }} {{ 1 if s is defined else 2 }} {{ s | length is gt 3 }}
{{ s | upper }} {{ s | lower }} {{ u | upper }} {{ u | lower }} {{ 'hELLO wORLD' | capitalize }} {{ 'hello big-bad (wOLF) o\'neil' | title }} {{ u | trim }}| {{ 'xxaxx' | trim('x') }} {{ n | upper }} {{ none | trim }} {{ missing | trim }}|
{{ s | length }} {{ u | length }} {{ list | count }} {{ map | length }} {{ missing | length }} {{ '\U0001f600' | length }}
{{ missing | default('d') }} {{ e | default('d') }}|{{ e | default('d', true) }} {{ e | d('x', boolean=true) }} {{ missing | default }}| {{ no | default('d') }} {{ z | default(5, true) }} {{ missing | default(default_value='k') }}
{{ list | first }} {{ list | last }} {{ empty | first }}|{{ s | first }}{{ s | last }} {{ map | first }} {{ list | reverse | list }} {{ s | reverse }} {{ s | list }} {{ map | list }} {{ range(3) | list }}
{{ list | join }} {{ list | join(', ') }} {{ people | join('/', attribute='name') }} {{ [1, none, 'a', 2.0] | join('-') }} {{ 'abc' | join('.') }} {{ empty | join(',') }}| {{ list | join(d='+') }}
{{ s | replace('l', 'L') }} {{ s | replace('l', 'L', 1) }} {{ s | replace('', '-') }} {{ s | replace('zz', '') }} {{ s.replace('o', '0', 1) }} {{ 'aaa'.replace('aa', 'b') }} {{ 'abc'.replace('', '.', 2) }}
{{ list | sort }} {{ words | sort }} {{ words | sort(case_sensitive=true) }} {{ list | sort(reverse=true) }} {{ people | sort(attribute='name') | map(attribute='name') | list }} {{ people | sort(attribute='in.a', reverse=true) | map(attribute='in.a') | list }} {{ [[2, 1], [1, 2]] | sort }}
{{ map | dictsort }} {{ map | dictsort(true) }} {{ {'x': 2, 'y': 1} | dictsort(by='value') }} {{ {'x': 2, 'y': 1} | dictsort(false, 'value', true) }} {% for k, v in map | dictsort %}{{ k }}={{ v }};{% endfor %}
{{ map.items() | list }} {{ map.keys() | list }} {{ map.values() | list }} {% for k, v in map.items() %}{{ k }}:{{ v }} {% endfor %}{% for k, v in map | items %}{{ loop.index }}{{ k }}{{ v }} {% endfor %}{{ missing | items | list }}
{{ people | map(attribute='name') | list }} {{ people | map(attribute='age', default='?') | join(',') }} {{ words | map('upper') | list }} {{ words | map('replace', 'a', 'o') | join }} {{ people | map(attribute='in.a') | sum }} {{ [[1, 2], [3, 4]] | map('first') | list }} {{ [['a']] | map(attribute=0) | list }}
{{ list | select('odd') | list }} {{ list | reject('odd') | list }} {{ list | select('gt', 1) | list }} {{ [0, 1, '', 'a', none] | select | list }} {{ [0, 1] | reject | list }} {{ words | select('in', ['a', 'b']) | list }}
{{ people | selectattr('age') | map(attribute='name') | list }} {{ people | selectattr('age', 'defined') | list | length }} {{ people | rejectattr('age', 'undefined') | list | length }} {{ people | selectattr('name', 'equalto', 'Ann') | first }} {{ people | selectattr('in.a', '>', 1) | map(attribute='name') | join }} {{ people | rejectattr('name', 'in', ['Ann', 'Cy']) | map(attribute='name') | list }}
{{ none | selectattr('a') | list }} {{ empty | map('upper') | list }} {{ 'y' if list | select('gt', 9) else 'n' }} {{ [] | map(attribute='x') | join('-') }}|
{{ ['a', 'B', 'b', 'A', 1, 1.0] | unique | list }} {{ ['a', 'A'] | unique(case_sensitive=true) | list }} {{ people | unique(attribute='in.a') | list | length }} {{ list | min }} {{ list | max }} {{ words | max }} {{ empty | max }}| {{ list | sum }} {{ [0.5, 1] | sum }} {{ people | sum(attribute='in.a') }} {{ [1] | sum(start=5) }}
{{ number_text | int }} {{ float_text | int }} {{ float_text | float }} {{ 'x' | int }} {{ 'x' | int(3) }} {{ 'ff' | int(base=16) }} {{ 3.99 | int }} {{ -3.99 | int }} {{ none | int }} {{ 'x' | float }} {{ 2 | float }} {{ true | int }} {{ -5 | abs }} {{ 5.5 | abs }}
{{ 2.567 | round(2) }} {{ 2.5 | round }} {{ 2.1 | round(method='ceil') }} {{ 2.9 | round(0, 'floor') }} {{ 7 | round }} {{ 1.25 | round(1) }}
{{ lines | indent }}|{{ lines | indent(2) }}|{{ lines | indent(2, true) }}|{{ lines | indent(2, first=true, blank=true) }}|{{ lines | indent('> ') }}|{{ 'a' | indent(3) }}|{{ '' | indent(3, true) }}|
{{ n | string }} {{ list | string }} {{ map | string }} {{ s | string | length }} {{ s | safe }} {{ none | string }} {{ true | string }}
{{ map | tojson }} {{ quotes | tojson }} {{ u | tojson }} {{ u | tojson(ensure_ascii=true) }} {{ floats | tojson }} {{ no | tojson }} {{ (1, 2) | tojson }} {{ {1: 2, none: 3, true: 4, 1.5: 6} | tojson }} {{ "\x7f" | tojson(true) }}
{{ deep | tojson(indent=2) }} {{ [] | tojson(indent=2) }} {{ {} | tojson(indent=4) }} {{ [1, [2, {}], {'a': []}] | tojson(indent=1) }} {{ list | tojson(indent='--') }}
{{ map | tojson(separators=(',', ':')) }} {{ map | tojson(sort_keys=true) }} {{ list | tojson(indent=2, separators=(';', '=')) }} {{ map | tojson(indent=None) }}
{{ '{"a": [1, 2.5, null, "x"]}' | from_json }} {{ ('[1]' | from_json)[0] }}
!{{ '{' | from_json }}
!{{ missing | tojson }}
!{{ range | tojson }}
!{{ [missing] | tojson }}
{{ s.split(', ') }} {{ s.split('o') }} {{ s.split('o', 1) }} {{ ' a  b c '.split() }} {{ ' a  b c '.split(none, 1) }} {{ s.rsplit('o', 1) }} {{ s.rsplit('o') }} {{ 'x'.split('y') }} {{ ''.split() }} {{ ''.split(',') }} {{ think.split('</think>')[-1].lstrip('\n') }}
{{ '  a '.strip() }}|{{ '  a '.lstrip() }}|{{ '  a '.rstrip() }}|{{ 'xyaxy'.strip('xy') }} {{ 'xya'.lstrip('yx') }} {{ '\n\na\n'.strip('\n') }} {{ u.strip() }}|{{ '\u00e9a\u00e9'.strip('\u00e9') }}|{{ ''.strip() }}|{{ 'a'.strip('') }}
{{ s.startswith('He') }} {{ s.endswith('ld') }} {{ s.startswith(('x', 'H')) }} {{ s.endswith('x') }} {{ s.startswith('') }} {{ s.find('o') }} {{ s.rfind('o') }} {{ s.find('zz') }} {{ s.index('W') }} {{ s.count('l') }} {{ 'aaa'.count('aa') }} {{ s.count('') }} {{ u.find('\u00df') }}
{{ s.upper() }} {{ s.lower() }} {{ 'aB cD'.capitalize() }} {{ "it's a-b c1d".title() }} {{ '12'.isdigit() }} {{ 'a1'.isalnum() }} {{ 'ab'.isalpha() }} {{ ' '.isspace() }} {{ ''.isdigit() }} {{ s.removeprefix('Hello') }} {{ s.removesuffix('ld') }} {{ s.removeprefix('x') }}
{{ odd.splitlines() }} {{ lines.splitlines() }} {{ ''.splitlines() }} {{ '-'.join(['a', 'b']) }} {{ ','.join(words) }} {{ [1, 2, 1].count(1) }} {{ list.index(1) }}
{% for x in list %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }}{{ loop.depth0 }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.cycle('a', 'b') }};{% endfor %}
{% for x in empty %}x{% else %}none{% endfor %}{% for x in list %}{{ x }}{% else %}none{% endfor %}{% for x in missing %}x{% else %}nothing{% endfor %}{% for x in list if x > 9 %}{{ x }}{% else %}no {{ n }}{% endfor %}
{% for x in list if x != 1 %}{{ loop.index }}/{{ loop.length }}={{ x }} {% endfor %}{% for c in 'h\u00e9\U0001f600' %}[{{ c }}]{% endfor %}{% for k in map %}{{ k }},{% endfor %}{% for a, b in [[1, 2], (3, 4)] %}{{ a }}{{ b }};{% endfor %}{% for (a, b) in [[1, 2]] %}{{ b }}{% endfor %}
{% for x in range(10) %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 5 %}{% break %}{% endif %}{{ x }}{% endfor %}|{% for a in list %}{% for b in list %}{% if b == 1 %}{% break %}{% endif %}{{ a }}{{ b }} {% endfor %}{% endfor %}
{% for x in range(2) %}{% for y in range(2) %}{{ loop.depth }}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %} {{ range(5) | list }} {{ range(2, 5) | list }} {{ range(5, 0, -2) | list }} {{ range(0) | list }} {% for i in range(3, -1, -1) %}{{ i }}{% endfor %} {{ 1, 2 }} {% for i in 1, 2 %}{{ i }}{% endfor %}
{% set x = 1 %}{% for i in list %}{% set x = x + i %}{{ x }},{% endfor %}{{ x }} {% if t %}{% set x = 9 %}{% endif %}{{ x }} {% set a, b = 1, 2 %}{{ b }}{{ a }} {% set c = (1, 2) %}{{ c }}
{% set ns = namespace(x=0, l=[]) %}{% for i in list %}{% set ns.x = ns.x + i %}{% set ns.l = ns.l + [i] %}{% endfor %}{{ ns.x }} {{ ns.l }} {{ ns.q is defined }} {% set ns.q = 1 %}{{ ns.q }} {{ namespace({'a': 1}).a }} {{ dict(a=1, b=2) }} {{ dict({'a': 1}, b=2) }}
{% set x %}a{{ n }}b{% endset %}{{ x }}|{{ x | length }} {% set x | upper | trim %}  q{% set inner = 1 %} {% endset %}{{ x }}|{{ inner is defined }}
{% if e %}1{% elif z %}2{% elif n %}3{% else %}4{% endif %}{% if e %}1{% else %}5{% endif %}{% if e %}1{% endif %}{% if t %}{% if e %}{% else %}6{% endif %}{% endif %}
{% macro m(a, b=2, c=a) %}[{{ a }}{{ b }}{{ c }}]{% endmacro %}{{ m(1) }}{{ m(1, 5) }}{{ m(1, c=7) }}{{ m(b=3, a=4) }}{{ m() }}{{ m(1) | length }}{{ m(*[1, 2]) }}{{ m(**{'a': 8}) }}{{ m(*[1], **{'c': 3}) }}
{% macro tree(d) %}{% for k, v in d.items() %}<{{ k }}>{% if v is mapping %}{{ tree(v) }}{% else %}{{ v }}{% endif %}{% endfor %}{% endmacro %}{{ tree({'a': {'b': {'c': 1}}, 'd': 2}) }}
{% set g = 1 %}{% macro see() %}{{ g }}{{ later }}{{ s }}{% set g = 5 %}{{ g }}{% endmacro %}{{ see() }}{% set later = 'L' %}{% set g = 2 %}{{ see() }}{{ g }}{% for i in [1] %}{% set later = 'no' %}{{ see() }}{% endfor %}
!{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}
!{% macro m(a) %}{% endmacro %}{{ m(q=2) }}
{% macro box(t) %}<{{ t }}:{{ caller() }}>{% endmacro %}{% call box('x') %}in {{ n }}{% endcall %}{% macro each(l) %}{% for i in l %}{{ caller(i) }}{% endfor %}{% endmacro %}{% call(i) each(list) %}({{ i }}){% endcall %}
{% filter upper %}abc {{ s }}{% endfilter %}{% filter replace('a', 'b') | trim %} aa {% endfilter %}|{% with a = 1, b = n %}{{ a }}{{ b }}{% set a = 5 %}{{ a }}{% endwith %}{{ a is defined }}{% generation %}gen {{ s }}{% set q = 1 %}{% endgeneration %}{{ q is defined }}
{% raw %}{{ not }} {% this %}{% endraw %}|{%- raw -%}  x  {%- endraw -%}|{# comment {{ x }} #}|{#- c -#} |
a  {{- s -}}  b {{ s }} c  {%- if t -%}  d  {%- endif -%}  e
  {% if t %}\n  x\n  {% endif %}\n  y\n
{%+ if t %}\n x{%+ endif %}\n{% if t +%}\n z\n{%- endif %}\n\n
\n  {% set x = 1 %}  \n  {# c #}\n{{ x }}\n\n{{ x }}\n   {%- set y = 2 %}\n
{{ '\n\t\\\'\"\x41\u00e9\U0001f600\101\q' }}{{ "it's" }}{{ 'a\
b' }}
{{ {'a': {'b': {}}} }} {{ {'a': 1}['a'] }} {{ [{'x': 1}][0].x }} {{ {'k': [1, {'z': 2}]}.k[1].z }} {{ {'a': 1,} }} {{ [1, 2,] }} {{ (1, 2,) }}
{{ strftime_now('%Y-%m-%d %H:%M:%S %B %b %A %a %j %%') }} {{ strftime_now('%d %b %Y') | upper }}
{{ s | replace('Hello', bos_token) }}{{ eos_token }}{{ ['a', bos_token] | join }} {{ bos_token in '<s>x' }} {{ bos_token ~ s }}
{{ messages is undefined }} {{ loop is defined }} {{ namespace is defined }} {{ True }} {{ False }} {{ None }} {{ none is none }} {{ true }}
{{ x.y.z if x is defined and x.y is defined else 'no x' }} {{ (map.a or 5) + 1 }} {{ map['a'] is defined and map['a'] > 0 }} {{ -1 | abs }} {{ (s | length) - 1 }} {{ s | length - 1 }}
{{ 'a,b;c' | replace(';', ',') | upper }} {{ ('a' ~ 'b') | upper }} {{ 'a' ~ 'b' | upper }} {{ [1, 2] | length + 1 }} {{ not [] }} {{ [] is sequence }} {{ 'x' * (3 - 1) }} {{ s[n - 5] }} {{ list[list | length - 1] }}
""".strip("\n")


def dump(row):
    return json.dumps(row, separators=(",", ":"))


def snippets():
    text = SNIPPETS.replace("\\\n", "\x00")
    for line in text.split("\n"):
        refused = line.startswith("!")
        source = line[1:] if refused else line
        outside = source.replace("\x00", "\\\n")
        if not refused and "{{ '\\n\\t" not in outside and not outside.startswith("{{"):
            outside = outside.replace("\\n", "\n")
        yield outside, refused


def main():
    os.makedirs(OUT, exist_ok=True)
    env = oracle.environment()
    n = 0
    with open(os.path.join(OUT, "constructs.jsonl"), "w", encoding="ascii") as f:
        for source, refused in snippets():
            f.write(dump({"template": source}) + "\n")
            try:
                text, why = oracle.render(env.from_string(source), VALUES)
            except Exception as e:
                text, why = None, str(e)
            if (why is not None) != refused:
                raise SystemExit(f"{source}\n{why or text}")
            row = {"words": oracle.WORDS} if n > 0 else {"values": VALUES, "words": oracle.WORDS}
            f.write(dump({**row, "error": "line 1: "} if refused else {**row, "text": text}) + "\n")
            n += 1
    print(f"constructs: {n}")
    n = 0
    with open(os.path.join(OUT, "conversations.jsonl"), "w", encoding="ascii") as f:
        for name, more in (("gemma4", {}), ("gemma4", {"edition": "july"}), ("qwen3", {"kind": "hybrid"}), ("qwen3", {"kind": "coder"})):
            with open(os.path.join(HERE, "chat", name + ".jinja"), encoding="utf-8") as source:
                text = source.read()
            template = env.from_string(text)
            f.write(dump({"template": text}) + "\n")
            for label, values in oracle.conversations():
                printed, why = oracle.render(template, {**values, **more})
                row = {"name": f"{name} {label}", "values": {**values, **more}, "words": oracle.WORDS}
                f.write(dump({**row, "error": "line "} if printed is None else {**row, "text": printed}) + "\n")
                n += 1
    print(f"conversations: {n}")


if __name__ == "__main__":
    main()
