// Dialogues to train on: by a model's own template each reply with its end, behind what the model
// reads when it is asked.
#include <fstream>
#include <nlohmann/json.hpp>

#include "support/files.h"
#include "text/chat.h"
#include "text/jsonl.h"
#include "text/source.h"

namespace moe::test::chat_training_test {
namespace {

const std::vector<Message> kTalk = {
    {"user", "q"}, {"assistant", "one"}, {"user", "r"}, {"assistant", "two"}};

std::vector<std::string> learned(const Document& document) {
  std::vector<std::string> out;
  for (const auto& [begin, end] : document.trained)
    out.push_back(
        document.text.substr(static_cast<size_t>(begin), static_cast<size_t>(end - begin)));
  return out;
}

void expect_same(const Document& a, const Document& b) {
  EXPECT_EQ(a.text, b.text);
  EXPECT_EQ(a.all_trained, b.all_trained);
  EXPECT_EQ(learned(a), learned(b));
  ASSERT_EQ(a.trained.size(), b.trained.size());
  for (size_t i = 0; i < a.trained.size(); ++i) EXPECT_EQ(a.trained[i].begin, b.trained[i].begin);
}

TEST(ChatTraining, ChatMlByItsTemplateIsChatMl) {
  const std::vector<std::vector<Message>> dialogues = {
      kTalk,
      {{"system", "Be brief."}, {"user", " a\n"}, {"assistant", ""}},
      {{"assistant", "first"}, {"assistant", " \n"}, {"user", ""}, {"user", "x"}},
      {{"user", "no reply"}},
      {{"user", "{{ x }}"}, {"assistant", "<think>\nhm\n</think>\n\né"}, {"user", "<b>"}}};
  for (const std::vector<Message>& dialogue : dialogues)
    expect_same(chatml().document(dialogue), chat_document(dialogue));
}

TEST(ChatTraining, EveryFamilyLearnsRepliesBehindItsPrompts) {
  const OrderedJson golden =
      OrderedJson::parse(std::ifstream(std::string(MOE_TEST_DATA) + "/golden/jinja.json"));
  size_t families = 0;
  std::string seen, refused;
  for (const OrderedJson& entry : golden["families"]) {
    const std::string family = entry["family"];
    if (family == seen) continue;
    seen = family;
    SCOPED_TRACE(family);
    const ChatTemplate t(entry["template"].get<std::string>(), {"<s>", "</s>"});
    Document document;
    try {
      document = t.document(kTalk);
    } catch (const Error& e) {
      refused += family + ": " + e.what() + "\n";
      continue;
    }
    ++families;
    ASSERT_EQ(document.trained.size(), 2u);
    const std::vector<std::string> replies = learned(document);
    EXPECT_NE(replies[0].find("one"), std::string::npos);
    EXPECT_NE(replies[1].find("two"), std::string::npos);
    EXPECT_EQ(replies[0].find("r<"), std::string::npos);
    for (const size_t i : {1u, 3u}) {
      const auto begin = static_cast<size_t>(document.trained[i / 2].begin);
      const bool dated = entry["template"].get<std::string>().find("strftime") != std::string::npos;
      if (!dated) EXPECT_EQ(document.text.substr(0, begin), t.prompt(std::span(kTalk).first(i)));
    }
    bool ends = false;
    for (const std::string& stop : t.stops()) ends |= replies[0].ends_with(stop);
    EXPECT_TRUE(ends) << replies[0];
  }
  EXPECT_GT(families, 10u) << refused;
}

TEST(ChatTraining, ALineEndBehindTheEndIsNotLearned) {
  const ChatTemplate llama2(
      "{% for m in messages %}{% if m.role == 'user' %}{{ bos_token + '[INST] ' + m.content + "
      "' [/INST]' }}{% else %}{{ ' ' + m.content + ' ' + eos_token }}{% endif %}{% endfor %}",
      {"<s>", "</s>"});
  EXPECT_EQ(learned(llama2.document(kTalk)), (std::vector<std::string>{" one </s>", " two </s>"}));
  const ChatTemplate no_end(
      "{% for m in messages %}{{ '\\n\\n' + m.role + ': ' + m.content }}{% endfor %}"
      "{{ '\\n\\nassistant: ' if add_generation_prompt }}",
      {});
  EXPECT_EQ(learned(no_end.document(kTalk)), (std::vector<std::string>{"one", "two"}));
}

TEST(ChatTraining, TheLastReplyEndsTooWhereOnlyTheNextMessageWouldEndIt) {
  const std::string begins =
      "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
      "{{ '<|assistant|>' if add_generation_prompt }}";
  EXPECT_EQ(learned(ChatTemplate(begins, {"", "</s>"}).document(kTalk)),
            (std::vector<std::string>{"one<|user|>", "two<|user|>"}));
  const std::string words =
      "{% for m in messages %}{{ '\n\n' + m.role + ': ' + m.content }}{% endfor %}"
      "{{ '\n\nassistant: ' if add_generation_prompt }}";
  EXPECT_EQ(learned(ChatTemplate(words, {"", "</s>"}).document(kTalk)),
            (std::vector<std::string>{"one", "two</s>"}));
}

TEST(ChatTraining, GenerationBlocksAreWhatIsLearned) {
  const ChatTemplate t(
      "{% for m in messages %}<|{{ m.role }}|>{% if m.role == 'assistant' %}{% generation %}"
      "{{ m.content }}<|end|>\n{% endgeneration %}{% else %}{{ m.content }}<|end|>\n{% endif %}"
      "{% endfor %}",
      {});
  EXPECT_EQ(learned(t.document(kTalk)), (std::vector<std::string>{"one<|end|>\n", "two<|end|>\n"}));
  const ChatTemplate inside(
      "{% for m in messages %}<|{{ m.role }}|>{% generation %}"
      "{% if m.role == 'assistant' %}a{% generation %}b{% endgeneration %}{% endif %}"
      "{% endgeneration %}{{ m.content }}{% endfor %}",
      {});
  EXPECT_EQ(learned(inside.document(kTalk)), (std::vector<std::string>{"ab", "ab"}));
}

TEST(ChatTraining, ATemplateThatRewritesThePastIsRefused) {
  const std::string every = "{% for m in messages %}<|{{ m.role }}|>";
  const std::string ask = "<|end|>{% endfor %}{{ '<|assistant|>' if add_generation_prompt }}";
  const ChatTemplate forgets_thoughts(
      every + "{{ m.content if loop.last else m.content.split('</think>')[-1] }}" + ask, {});
  std::vector<Message> thinks = kTalk;
  thinks[1].content = "<think>hm</think>one";
  EXPECT_FAILS(forgets_thoughts.document(thinks),
               "message 2: the model's chat template writes this reply otherwise than it stands");
  EXPECT_EQ(learned(forgets_thoughts.document(kTalk)),
            (std::vector<std::string>{"one<|end|>", "two<|end|>"}));
  EXPECT_EQ(learned(forgets_thoughts.document(std::span(thinks).first(2))),
            (std::vector<std::string>{"<think>hm</think>one<|end|>"}));
  const ChatTemplate opens_thought(every +
                                       "{{ m.content }}<|end|>{% endfor %}"
                                       "{{ '<|assistant|><think>' if add_generation_prompt }}",
                                   {});
  EXPECT_FAILS(opens_thought.document(kTalk), "message 2: the model's chat template does not");
  const ChatTemplate counts("{{ messages | length }}" + every + "{{ m.content }}" + ask, {});
  EXPECT_FAILS(counts.document(kTalk), "it changes what came before");
  // white space may differ: Llama 3 takes it from the ends
  const ChatTemplate trims(every + "{{ m.content | trim }}" + ask, {});
  EXPECT_EQ(learned(trims.document(std::vector<Message>{{"user", "q"}, {"assistant", " a b\n"}})),
            (std::vector<std::string>{"a b<|end|>"}));
}

TEST(ChatTraining, ADialogueIsTheSameOnEveryDay) {
  const ChatTemplate t(
      "{{ strftime_now('%d %b %Y') }}{% for m in messages %}[{{ m.role }}]"
      "{{ m.content }}{% endfor %}{{ '[assistant]' if add_generation_prompt }}",
      {});
  EXPECT_TRUE(t.document(kTalk).text.starts_with("26 Jul 2024[user]q"));
}

TEST(ChatTraining, ATokenizersTemplateWritesItsJsonLines) {
  const auto tokenizer = make_tokenizer("bytes");
  const auto runs = [&](const std::string& bytes) {
    std::vector<std::string> out;
    each_run("a.jsonl", bytes, *tokenizer, 0, Pairs::refused, [&](TextRun&& run) {
      out.push_back(std::string(run.text()));
      EXPECT_EQ(run.all_trained, run.trained.empty());
    });
    return out;
  };
  const std::string line = jsonl_line(kTalk);
  EXPECT_EQ(runs(line).at(0), chat_document(kTalk).text);
  mark_dialogues(*tokenizer);
  EXPECT_EQ(runs(line).at(0), chat_document(kTalk).text);
  const auto set_template = [&](const std::string& jinja) {
    tokenizer->set_config_json(OrderedJson{{"chat_template", jinja}}.dump());
  };
  set_template(
      "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor %}"
      "{{ '<assistant>' if add_generation_prompt }}");
  EXPECT_EQ(runs("{\"text\": \"plain\"}\n" + line).at(1),
            "<user>q</user><assistant>one</assistant><user>r</user><assistant>two</assistant>");
  set_template(
      "{% for m in messages %}[{{ m.content }}]{{ 1 / 0 if loop.length > 3 }}{% endfor %}");
  EXPECT_FAILS(runs("\n" + line), "a.jsonl: line 2: chat template, line 1: ");
  set_template("{% include 'x' %}");
  EXPECT_FAILS(runs(line), "a.jsonl: line 1: chat template, line 1: {% include %}");
  EXPECT_EQ(runs("{\"text\": \"plain\"}").at(0), "plain");  // the template is not read
}

}  // namespace
}  // namespace moe::test::chat_training_test
