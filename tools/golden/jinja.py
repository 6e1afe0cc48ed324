"""Chat templates and pieces of them, run by jinja2 as transformers configures it
(transformers/utils/chat_template_utils.py): what the engine's interpreter must give, or refuse."""

import json
import os

import common
import jinja2.ext
from chat_templates import TEMPLATES
from jinja2.sandbox import ImmutableSandboxedEnvironment

TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": 'of a "place" <here> & there',
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
CONTEXT = {
    "messages": [
        {"role": "system", "content": " Be brief. "},
        {"role": "user", "content": "Größe?\n"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\n Hello  "},
        {"role": "user", "content": "2?"},
    ],
    "tools": [TOOL],
    "numbers": [3, 1, 2, 1],
    "nested": {"b": [1, 2.5, None, True], "a": {"x": "é\"'"}},
    "text": "Abc dEf-ghi",
    "spaces": "  \t a b \u00a0\n",
    "empty": "",
    "nothing": None,
    "zero": 0,
    "add_generation_prompt": True,
    "bos_token": "<s>",
    "eos_token": "</s>",
}
PIECES = [
    # white space around tags
    "a\n  {% if true %}\n b\n  {% endif %}\nc\n",
    "a  {%- if true -%}  b  {%- endif -%}  c",
    "  {%+ if true %}\n x {% endif +%}\n y",
    "a {{- 'b' -}} c {{ 'd' }}\n",
    "x\n\n  {#- note -#}\n\n y {# z #}\n w",
    "  {# one #}\n  {# two #}{% set x = 1 %}\n{{ x }}",
    "{% raw %}{{ x }} {% if %}{% endraw %}|",
    "{% raw %}\nx{% endraw %}",
    "{% raw -%}\n x{% endraw %}",
    "a\n{% raw %}\n  {% endraw %}\nb",
    "a\r\nb\rc\n\n",
    "{%- for x in numbers %}\n  {{ x }}\n  {%- endfor %}\nend",
    # values
    "{{ nested }} {{ numbers }} {{ (1,) }} {{ () }} {{ nothing }} {{ true }} {{ undefined_name }}|",
    "{{ 1 }} {{ 1.0 }} {{ 1e20 }} {{ 0.1 }} {{ 1_000 }} {{ -3 }} {{ 1e-7 }}",
    "{{ 'a' 'b' }} {{ \"it's\" }} {{ 'x\\ny\\t\\\\z\\x41\\u00e9' }}",
    "{{ {'a': 1, 'b': [2, {'c': 3}]} }} {{ [1, 'two', none] }}",
    "{{ {'it\\'s': 'say \"x\"', 'n': '\\n'} }}",
    # operators
    "{{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** 10 }} {{ 2 * 3.5 }} {{ 7.5 % 2 }}",
    "{{ 1 + 2 * 3 - 4 }} {{ (1 + 2) * 3 }} {{ -2 ** 2 }} {{ 'a' ~ 1 ~ none ~ 2.0 }} {{ 'ab' * 3 }}",
    "{{ 1 < 2 < 3 }} {{ 1 < 2 > 3 }} {{ 'a' < 'b' }} {{ [1, 2] < [1, 3] }} {{ 1 == 1.0 }} {{ '1' == 1 }} {{ true == 1 }}",
    "{{ 'b' in text }} {{ 'x' not in text }} {{ 2 in numbers }} {{ 'a' in nested }} {{ not 1 in numbers }} {{ 'x' in undefined_name }}",
    "{{ 0 or 'x' }} {{ 1 and 'y' }} {{ not 0 }} {{ '' and 1 }}|{{ 1 if zero else 2 }} {{ 'only' if false }}|",
    "{{ [1] + [2] }} {{ (1,) + (2,) }} {{ 1 if zero else 4 if zero else 5 }}",
    "{{ numbers[0] }} {{ numbers[-1] }} {{ numbers[9] }}|{{ text[1] }} {{ text[-1] }} {{ nested['a']['x'] }} {{ nested.a.x }} {{ nested.zz }}|",
    "{{ numbers[1:] }} {{ numbers[::-1] }} {{ numbers[:-1] }} {{ text[::2] }} {{ text[-3:] }} {{ numbers[-100:100] }} {{ numbers[3:0:-2] }}",
    "{{ messages[0].content }}{{ messages[1]['content'][0] }}{{ messages[-1].role }}",
    # statements
    "{% for m in messages if m.role != 'system' %}{{ loop.index }}/{{ loop.length }} {{ m.role }}{{ ', ' if not loop.last }}{% endfor %}",
    "{% for x in [] %}a{% else %}b{% endfor %}{% for x in 'é中' %}{{ x }},{% endfor %}",
    "{% for k, v in nested.items() %}{{ k }}={{ v }};{% endfor %}{% for k in nested %}{{ k }}{% endfor %}",
    "{% for x in numbers %}{% if x == 2 %}{% break %}{% endif %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in numbers %}{{ loop.first }}{{ loop.revindex }}{{ loop.previtem }}-{{ loop.nextitem }}{{ loop.cycle('a', 'b') }};{% endfor %}",
    "{% set ns = namespace(a=1, b='x') %}{% for x in numbers %}{% set ns.a = ns.a + x %}{% set b = x %}{% endfor %}{{ ns.a }}{{ ns.b }}{{ b }}|",
    "{% set a, b = 1, 2 %}{{ b }}{{ a }}{% set c %}<{{ a }}>{% endset %}{{ c }}{% set d | upper %}x{{ c }}{% endset %}{{ d }}",
    "{% macro m(a, b='d', c=none) %}[{{ a }}{{ b }}{{ c }}]{% endmacro %}{{ m(1) }}{{ m(1, c=2) }}{{ m('x', 'y', 'z') }}{{ m() }}",
    "{% macro down(n) %}{{ n }}{% if n > 0 %}{{ down(n - 1) }}{% endif %}{% endmacro %}{{ down(5) }}",
    "{% macro outer(a) %}{% macro inner() %}{{ a }}{% endmacro %}{{ inner() }}{% endmacro %}{{ outer('z') }}",
    "{% for x in [1, 2] %}{% macro f() %}{{ x }}{% endmacro %}{{ f() }}{% endfor %}",
    "{% for x in [1] %}{% macro down(n) %}{{ x }}{{ n }}{% if n > 0 %}{{ down(n - 1) }}{% endif %}{% endmacro %}{{ down(2) }}{% endfor %}",
    "{% set ns = namespace() %}{% macro outer(a) %}{% macro inner() %}{{ a }}{% endmacro %}{% set ns.f = inner %}{% endmacro %}{{ outer('z') }}{{ ns.f() }}",
    "{% macro outer() %}{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}B{% endmacro %}{{ a() }}{% endmacro %}{{ outer() }}",
    "{% macro outer() %}{% macro a(n) %}a{% if n %}{{ b(n - 1) }}{% endif %}{% endmacro %}{% macro b(n) %}b{% if n %}{{ a(n - 1) }}{% endif %}{% endmacro %}{{ a(3) }}{% endmacro %}{{ outer() }}",
    "{% set x = 0 %}{% macro outer() %}{% macro a() %}{{ x }}{% endmacro %}{% set x = 2 %}{{ a() }}{% endmacro %}{{ outer() }}{{ x }}",
    "{% macro outer() %}{% macro a() %}{{ b is defined }}{% endmacro %}{{ a() }}{% macro b() %}{% endmacro %}{{ a() }}{% endmacro %}{{ outer() }}",
    "{% set ns = namespace() %}{% macro outer() %}{% macro a() %}{{ b() }}{% endmacro %}{% set ns.f = a %}{% macro b() %}B{% endmacro %}{% endmacro %}{{ outer() }}{{ ns.f() }}",
    "{% for i in [1, 2] %}{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ i }}{% endmacro %}{{ a() }}{% endfor %}",
    "{% macro outer(x=b()) %}{% macro a(y=c()) %}{{ x }}{{ y }}{% endmacro %}{% macro c() %}C{% endmacro %}{{ a() }}{% endmacro %}{% macro b() %}B{% endmacro %}{{ outer() }}",
    "{% for x in [] %}{% else %}{% set a = 1 %}{{ a }}{% endfor %}[{{ a }}]",
    "{% set x = 1 %}{% if true %}{% set x = 2 %}{% endif %}{% for i in [1] %}{% set x = 3 %}{% endfor %}{{ x }}",
    "{% generation %}a{% set y = 1 %}{% endgeneration %}{{ y }}|",
    "{% if zero %}a{% elif nothing %}b{% elif text %}c{% else %}d{% endif %}",
    # methods
    "{{ spaces.strip() }}|{{ spaces.lstrip() }}|{{ spaces.rstrip() }}|{{ 'xxaxx'.strip('x') }}|{{ 'abcab'.lstrip('ba') }}",
    "{{ text.upper() }} {{ text.lower() }} {{ text.title() }} {{ text.capitalize() }} {{ text.replace('b', 'BB') }} {{ 'aaa'.replace('a', 'b', 2) }}",
    "{{ 'a,b,,c'.split(',') }} {{ ' a  b '.split() }} {{ 'a,b,c'.split(',', 1) }} {{ 'a,b,c'.rsplit(',', 1) }} {{ 'a b  c '.split(none, 1) }} {{ 'a\nb\r\nc\n'.splitlines() }}",
    "{{ text.startswith('Ab') }} {{ text.endswith(('x', 'hi')) }} {{ text.find('d') }} {{ text.find('zz') }} {{ text.rfind('E') }} {{ 'aXbX'.count('X') }} {{ '-'.join(['a', 'b']) }}",
    "{{ 'prefix'.removeprefix('pre') }} {{ 'x.txt'.removesuffix('.txt') }} {{ '12'.isdigit() }} {{ 'a1'.isalpha() }} {{ '{}-{}'.format(1, 'b') }} {{ '{1}{0}{x}{{}}'.format('a', 'b', x=2) }}",
    "{{ nested.get('a') }} {{ nested.get('q') }} {{ nested.get('q', 1) }} {{ nested.keys() | list }} {{ nested.values() | list }} {{ numbers.index(2) }} {{ numbers.count(1) }}",
    # filters
    "{{ spaces | trim }}|{{ text | length }} {{ numbers | count }} {{ 'é中' | length }} {{ numbers | first }} {{ numbers | last }} {{ [] | first }}|",
    "{{ numbers | sort }} {{ numbers | sort(reverse=true) }} {{ numbers | unique | list }} {{ numbers | sum }} {{ numbers | max }} {{ numbers | min }} {{ numbers | reverse | list }} {{ text | reverse }}",
    "{{ numbers | join(', ') }} {{ messages | join('|', attribute='role') }} {{ messages | map(attribute='role') | join(',') }} {{ ['a', 'b'] | map('upper') | list }}",
    "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | list }} {{ messages | rejectattr('role', 'in', ['user', 'system']) | list | length }} {{ numbers | select('odd') | list }} {{ numbers | reject('>', 1) | list }} {{ [0, 1, ''] | select | list }}",
    "{{ {'a': 1, 'b': 2} | dictsort | map(attribute='0') | join(',') }} {{ [{'a': [7]}] | map(attribute='a.0') | list }} {{ [{'items': [1]}] | map(attribute='items') | list }} {{ [[1, 2], [3, 4]] | map(attribute=-1) | list }} {{ [{0: 'z'}] | map(attribute=0) | list }}",
    "{{ nope | default('d') }} {{ '' | default('d') }} {{ '' | default('d', true) }} {{ nothing | default('d') }} {{ nope | d }}|",
    "{{ nested | tojson }} {{ nested | tojson(indent=2) }} {{ [] | tojson(indent=2) }} {{ {} | tojson }} {{ 'é<&\\u2028\\x01' | tojson }} {{ 1.5 | tojson }} {{ nested | tojson(sort_keys=true, separators=(',', ':')) }} {{ 'é😀' | tojson(ensure_ascii=true) }}",
    "{{ '12' | int }} {{ 'x' | int }} {{ '3.9' | int }} {{ 3.9 | int }} {{ 'x' | int(7) }} {{ '2.5' | float }} {{ 3 | float }} {{ 2.5 | round }} {{ 2.345 | round(2) }} {{ 2.1 | round(method='ceil') }} {{ -3 | abs }} {{ 5 | string }}",
    "{{ 'a\nb\n\nc' | indent }} {{ 'a\nb' | indent(2, true) }} {{ 'a\n\nb' | indent(1, blank=true) }} {{ 'a\nb' | indent('>') }}",
    "{{ 'the quick-brown (fox) <x>' | title }} {{ 'aBC' | capitalize }} {{ text | upper | lower }} {{ 'a<b>&\"' | e }} {{ text | replace('c', 'X') }}",
    "{{ nested | dictsort }} {{ {'b': 1, 'A': 2} | dictsort }} {{ {'b': 1, 'A': 2} | dictsort(by='value') }} {{ nested | items | list }}",
    "{{ ['b', 'A', 'c'] | sort }} {{ ['b', 'A'] | sort(case_sensitive=true) }} {{ messages | sort(attribute='role') | map(attribute='role') | list }} {{ ['a', 'A', 'b'] | unique | list }}",
    "{{ 'x<' ~ ('a' | safe) }} {{ 'x<' + ('a' | safe) }} {{ ('a' | safe) + '>' }}",
    # tests
    "{{ text is string }} {{ numbers is sequence }} {{ text is sequence }} {{ nested is mapping }} {{ numbers is iterable }} {{ zero is number }} {{ true is number }} {{ 1.5 is float }} {{ 1 is integer }} {{ true is integer }} {{ true is boolean }}",
    "{{ nope is defined }} {{ nope is undefined }} {{ nothing is none }} {{ nope is none }} {{ 3 is odd }} {{ 3 is even }} {{ 6 is divisibleby 3 }} {{ true is true }} {{ 1 is true }} {{ false is false }} {{ 'a' is eq 'a' }} {{ 1 is in [1] }} {{ 1 is not in [1] }} {{ 'a' is lower }} {{ 2 is gt(1) }}",
    "{{ not nope is defined and 1 is not none }} {{ text is not string or true }} {{ range is callable }}",
    # functions
    "{{ range(3) | list }} {{ range(1, 4) | list }} {{ range(5, 0, -2) | list }} {{ dict(a=1, b=2) }} {{ namespace(x=1).x }}",
    "{{ strftime_now('%d %b %Y') }}",
    # refusals
    "{{ raise_exception('no') }}",
    "{{ nope.x }}",
    "{{ nope + 'a' }}",
    "{{ 'a' + 1 }}",
    "{{ 1 / 0 }}",
    "{{ numbers | nope }}",
    "{{ numbers is nope }}",
    "{{ nope() }}",
    "{% if %}{% endif %}",
    "{% for x in numbers %}",
    "{{ 'a }}",
    "{{ 1 + }}",
    "{% nope %}",
    "{{ messages | map(attribute='role') | tojson }}",
    "{{ messages.append(1) }}",
    "{{ 5 | length }}",
    "{% for x in 5 %}{% endfor %}",
    "{{ 'a' < 1 }}",
    "{% break %}",
]
DIALOGUES = [
    [("system", "Be brief."), ("user", " Hi "), ("assistant", " Hello "), ("user", "2?")],
    [("user", "Hi")],
    [("user", "a"), ("assistant", "<think>\nb\n</think>\n\n c\n"), ("user", "d")],
    [("system", ""), ("user", "é\n")],
]


def environment():
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(
            x,
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )

    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: {"%d %b %Y": "02 Jan 1970"}[form]
    return environment


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        call = self.call_method("_written")
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _written(self, caller):
        return caller()


def run(template, context):
    try:
        return {"text": environment().from_string(template).render(**context)}
    except Exception:
        return {"refused": True}


def make_all(folder):
    pieces = [{"template": piece, **run(piece, CONTEXT)} for piece in PIECES]
    families = []
    for family, template in TEMPLATES.items():
        for dialogue in DIALOGUES:
            messages = [{"role": role, "content": content} for role, content in dialogue]
            context = {
                "messages": messages,
                "add_generation_prompt": True,
                "bos_token": "<s>",
                "eos_token": "</s>",
            }
            families.append(
                {
                    "family": family,
                    "template": template,
                    "messages": messages,
                    **run(template, context),
                }
            )
    path = os.path.join(folder, "jinja.json")
    with open(path, "w", encoding="utf-8") as file:
        file.write(common.dump({"context": CONTEXT, "pieces": pieces, "families": families}))
