"""Chat templates of the families that people run, in words of ours."""

# Of each family a text of ours that says what the published one says: how messages follow each
# other, spaces and defaults.
CHATML = (
    "{% for m in messages %}DEFAULT{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
DEFAULT = "{% if loop.first and m['role'] != 'system' %}{{ '<|im_start|>system\\nYou are a model, \\'kind\\'.<|im_end|>\\n' }}{% endif %}"
QWEN25 = (
    "{%- if messages[0]['role'] == 'system' %}{{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}{%- else %}"
    "{{- '<|im_start|>system\\nYou are Q. You help.<|im_end|>\\n' }}{%- endif %}"
    "{%- for m in messages %}{%- if not (loop.first and m.role == 'system') %}{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>' + '\\n' }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
QWEN3 = (
    "{% for m in messages %}{% set said = m.content %}{% if m.role == 'assistant' and '</think>' in said %}{% set said = said.split('</think>')[-1].lstrip('\\n') %}{% endif %}"
    "{{ '<|im_start|>' + m.role + '\\n' + said + '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
LLAMA3 = (
    "{% for m in messages %}{% if loop.first %}{{ bos_token }}{% endif %}{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\\n\\n' + m['content'] | trim + '<|eot_id|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
)
LLAMA31 = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set told = messages[0]['content'] | trim %}{% set rest = messages[1:] %}{% else %}{% set told = '' %}"
    "{% set rest = messages %}{% endif %}{{ '<|start_header_id|>system<|end_header_id|>\\n\\n' }}{{ 'Cutting Knowledge Date: December 2023\\n' }}"
    "{{ 'Today Date: ' + DATE + '\\n\\n' }}{{ told + '<|eot_id|>' }}{% for m in rest %}"
    "{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\\n\\n' + m['content'] | trim + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
)
LLAMA2 = (
    "{% set told = messages[0]['content'] if messages[0]['role'] == 'system' else false %}{% set rest = messages[1:] if told is not false else messages %}"
    "{% for m in rest %}{% set said = '<<SYS>>\\n' + told + '\\n<</SYS>>\\n\\n' + m['content'] if loop.first and told is not false else m['content'] %}"
    "{% if m['role'] == 'user' %}{{ bos_token + '[INST] ' + said.strip() + ' [/INST]' }}{% else %}{{ ' ' + said.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
)


def mistral(open_mark, close_mark, reply, last):
    return (
        (
            "{% set system_message = messages[0]['content'] if messages[0]['role'] == 'system' else false %}{% set rest = messages[1:] if system_message is not false else messages %}"
            "{{ bos_token }}{% for message in rest %}{% if message['role'] == 'user' %}{% if WHERE is not false %}"
            "{{ 'OPEN' + system_message + '\\n\\n' + message['content'] + 'CLOSE' }}{% else %}{{ 'OPEN' + message['content'] + 'CLOSE' }}{% endif %}"
            "{% else %}{{ REPLY }}{% endif %}{% endfor %}"
        )
        .replace(
            "WHERE", "loop.last and system_message" if last else "loop.first and system_message"
        )
        .replace("OPEN", open_mark)
        .replace("CLOSE", close_mark)
        .replace("REPLY", reply)
    )


DEEPSEEK = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}{{ 'User: ' + m['content'] + '\\n\\n' }}{% elif m['role'] == 'assistant' %}"
    "{{ 'Assistant: ' + m['content'] + eos_token }}{% else %}{{ m['content'] + '\\n\\n' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
TULU = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'assistant' %}{{ '<|assistant|>\\n' + m['content'] + eos_token }}{% if not loop.last %}{{ '\\n' }}{% endif %}"
    "{% elif m['role'] == 'user' %}{{ '<|user|>\\n' + m['content'] + '\\n' }}{% else %}{{ '<|system|>\\n' + m['content'] + '\\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"
)
ZEPHYR = (
    "{% for m in messages %}\n{% if m['role'] == 'user' %}\n{{ '<|user|>\\n' + m['content'] + eos_token }}\n{% elif m['role'] == 'system' %}\n"
    "{{ '<|system|>\\n' + m['content'] + eos_token }}\n{% else %}\n{{ '<|assistant|>\\n' + m['content'] + eos_token }}\n{% endif %}\n"
    "{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}"
)
PHI4 = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '<|im_sep|>' + m['content'] + '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant<|im_sep|>' }}{% endif %}"
)
TEMPLATES = {
    "chatml": CHATML.replace("DEFAULT", ""),
    "smollm2": CHATML.replace("DEFAULT", DEFAULT),
    "qwen2.5": QWEN25,
    "qwen3": QWEN3,
    "llama3": LLAMA3,
    "llama3.1": LLAMA31.replace("DATE", "'26 Jul 2024'"),
    "llama3.2": LLAMA31.replace("DATE", "strftime_now('%d %b %Y')"),
    "llama2": LLAMA2,
    "mistral-v1": mistral(" [INST] ", " [/INST]", "' ' + message['content'] + eos_token", False),
    "mistral-v3": mistral("[INST] ", "[/INST]", "' ' + message['content']|trim + eos_token", True),
    "mistral-tekken": mistral("[INST]", "[/INST]", "message['content'] + eos_token", True),
    "deepseek": DEEPSEEK,
    "tulu": TULU,
    "zephyr": ZEPHYR,
    "phi4": PHI4,
}
