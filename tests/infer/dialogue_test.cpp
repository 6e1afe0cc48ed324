// Dialogues: what the model sees and what it reads anew, replies in the bits of one prompt, and
// what is let go when the context is full.
#include "infer/dialogue.h"

#include <cstring>

#include "support/files.h"
#include "support/same_rows.h"
#include "support/tiny_model.h"

namespace moe::test::dialogue_test {
namespace {

const EmitText kAll = [](const std::string&) { return true; };

struct Fixture {
  std::unique_ptr<Model> model;
  std::unique_ptr<Tokenizer> tokenizer = make_tokenizer("bytes");
  moe::Run run{2};
  GenerateOptions options;

  explicit Fixture(int64_t context = 1024) {
    ModelConfig config = plain_config();
    config.context = context;
    config.init.std = 0.3f;  // logits far enough apart that replies differ
    model = fresh(config);
    options.max_tokens = 12;
    options.sampler.temperature = 1;
    options.sampler.seed = 5;
  }
  Dialogue dialogue() { return {*model, run, *tokenizer, options}; }
  // What a session of its own makes of these messages.
  Generated alone(const std::vector<Message>& messages, uint64_t seed) {
    Session session(*model, run, 4096);
    GenerateOptions o = options;
    o.sampler.seed = seed;
    return generate(session, *tokenizer, tokenizer->encode(chatml().prompt(messages)), o, kAll);
  }
};

TEST(Dialogue, EachReplyIsThatOfOnePromptHoldingAll) {
  Fixture f;
  Dialogue dialogue = f.dialogue();
  dialogue.set_system("Be brief.");
  std::vector<Message> messages = {{"system", "Be brief."}};
  for (uint64_t turn = 0; turn < 4; ++turn) {
    messages.push_back({"user", fmt::format("question {}", turn)});
    const Generated want = f.alone(messages, 5 + turn);
    std::string shown;
    const Reply got = dialogue.ask(messages.back().content, [&](const std::string& text) {
      shown += text;
      return true;
    });
    EXPECT_EQ(got.generated.text, want.text) << turn;
    EXPECT_EQ(shown, want.text) << turn;
    EXPECT_EQ(got.generated.prompt_tokens, want.prompt_tokens);
    messages.push_back({"assistant", got.generated.text});
  }
  ASSERT_EQ(dialogue.messages().size(), messages.size());
  for (size_t i = 0; i < messages.size(); ++i) {
    EXPECT_EQ(dialogue.messages()[i].role, messages[i].role);
    EXPECT_EQ(dialogue.messages()[i].content, messages[i].content);
  }
  EXPECT_NE(messages[2].content, messages[4].content)
      << "replies must differ, or they prove nothing";
}

// Of the second prompt the first turn is in the cache. Bytes that are no character come back from a
// text as others, so a reply without such is looked for.
TEST(Dialogue, ReadsOnlyWhatIsNew) {
  Fixture f;
  f.options.max_tokens = 3;
  const auto turn = static_cast<int64_t>(
      std::string("<|im_end|>\n<|im_start|>user\nbbbb<|im_end|>\n<|im_start|>assistant\n").size());
  int found = 0;
  for (f.options.sampler.seed = 0; f.options.sampler.seed < 40; ++f.options.sampler.seed) {
    Dialogue dialogue = f.dialogue();
    const Generated first = dialogue.ask("aaaa", kAll).generated;
    EXPECT_EQ(first.read_tokens, first.prompt_tokens);
    if (first.text.find("\xEF\xBF\xBD") != std::string::npos) continue;
    const Generated second = dialogue.ask("bbbb", kAll).generated;
    EXPECT_EQ(second.prompt_tokens, first.prompt_tokens + first.tokens + turn);
    EXPECT_EQ(second.read_tokens, turn + 1)
        << "and the last token of the reply, which nothing had followed";
    EXPECT_EQ(dialogue.ask_again(kAll).generated.read_tokens, 1);
    ++found;
  }
  EXPECT_GT(found, 0);
}

// A model without channels may have a template with them: what it writes is content.
TEST(Dialogue, GoesOnWithTheContentOfAReplyInChannels) {
  Fixture f;
  f.tokenizer->set_config_json(
      R"({"chat_template": "{% for m in messages %}{% if m.role == 'assistant' %}<|start|>assistant{% if m.thinking %}<|channel|>analysis<|message|>{{ m.thinking }}<|end|>{% endif %}<|channel|>final<|message|>{{ m.content }}<|end|>{% else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"})");
  Dialogue dialogue = f.dialogue();
  std::string shown;
  const Reply first = dialogue.ask("one", [&](const std::string& text) {
    shown += text;
    return true;
  });
  EXPECT_EQ(first.content, first.generated.text);
  EXPECT_EQ(shown, first.content);
  EXPECT_EQ(first.thought, "");
  EXPECT_EQ(dialogue.ask("two", kAll).prompt,
            "<|start|>user<|message|>one<|end|><|start|>assistant<|channel|>final<|message|>" +
                first.content + "<|end|><|start|>user<|message|>two<|end|><|start|>assistant");
}

// A thought that the prompt opened, and that a model of random weights does not end, is the whole
// reply. Whether the next prompt has it is for the template to say.
TEST(Dialogue, ShowsThoughtsApart) {
  for (const bool keeps : {false, true}) {
    Fixture f;
    const std::string thought = keeps ? "{{ m.reasoning_content }}" : "";
    f.tokenizer->set_config_json(
        R"({"chat_template": "{% for m in messages %}<|{{ m.role }}|>)" + thought +
        R"({{ m.content }}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|><think>{% endif %}"})");
    Dialogue dialogue = f.dialogue();
    std::string answered, thought_of;
    const Reply first = dialogue.ask(
        "one",
        [&](const std::string& text) {
          answered += text;
          return true;
        },
        {},
        [&](const std::string& text) {
          thought_of += text;
          return true;
        });
    EXPECT_NE(first.thought, "");
    EXPECT_NE(first.generated.text.find(first.thought), std::string::npos);
    EXPECT_EQ(thought_of, first.thought);
    EXPECT_EQ(first.content, "");
    EXPECT_EQ(answered, "");
    EXPECT_EQ(dialogue.messages().back().content, "");
    EXPECT_EQ(dialogue.ask("two", kAll).prompt,
              "<|user|>one<|end|><|assistant|>" + (keeps ? first.thought : "") +
                  "<|end|><|user|>two<|end|><|assistant|><think>");
  }
}

TEST(Dialogue, DrawsAnotherReplyToTheSameQuestion) {
  Fixture f;
  Dialogue dialogue = f.dialogue();
  EXPECT_FAILS(dialogue.ask_again(kAll), "no reply yet");
  const std::string first = dialogue.ask("one", kAll).generated.text;
  const std::string second = dialogue.ask_again(kAll).generated.text;
  EXPECT_NE(first, second);
  EXPECT_EQ(second, f.alone({{"user", "one"}}, 6).text);
  EXPECT_EQ(dialogue.messages().size(), 2u);
  dialogue.reset();
  EXPECT_TRUE(dialogue.messages().empty());
  EXPECT_EQ(dialogue.ask("one", kAll).generated.text, first)
      << "a dialogue begun anew draws as the first one did";
}

TEST(Dialogue, EndsAReplyAtAMarkOrWhenTold) {
  Fixture f;
  // Whatever the reply is, a stop makes its first characters the end.
  const std::string reply = f.alone({{"user", "one"}}, 5).text;
  ASSERT_GT(reply.size(), 4u);
  f.options.stop = {reply.substr(2, 2)};
  Dialogue stopped = f.dialogue();
  EXPECT_EQ(stopped.ask("one", kAll).generated.text,
            reply.substr(0, reply.find(reply.substr(2, 2))));
  f.options.stop.clear();
  Dialogue told = f.dialogue();
  const Reply cut = told.ask("one", [](const std::string&) { return false; });
  EXPECT_EQ(cut.generated.finish, "interrupted");
  EXPECT_EQ(told.messages().back().content, cut.generated.text);
  EXPECT_NO_THROW(told.ask("two", kAll));
}

TEST(Dialogue, LetsTheOldestTurnsGoWhenTheContextIsFull) {
  Fixture f(200);
  Dialogue dialogue = f.dialogue();
  dialogue.set_system("S");
  std::vector<Message> messages = {{"system", "S"}};
  int64_t gone = 0;
  for (uint64_t turn = 0; turn < 6; ++turn) {
    messages.push_back({"user", fmt::format("q{}", turn)});
    const Reply reply = dialogue.ask(messages.back().content, kAll);
    gone += reply.let_go;
    messages.push_back({"assistant", reply.generated.text});
    EXPECT_LE(reply.generated.prompt_tokens + reply.generated.tokens, 201);
    std::vector<Message> seen = {messages.front()};
    seen.insert(seen.end(), messages.begin() + 1 + gone, messages.end() - 1);
    EXPECT_EQ(reply.generated.text, f.alone(seen, 5 + turn).text) << turn;
  }
  EXPECT_GT(gone, 4);
  EXPECT_EQ(gone % 2, 0) << "questions go with their replies";
  EXPECT_EQ(dialogue.messages().size(), messages.size()) << "none is forgotten for saving";
}

TEST(Dialogue, SaysWhichPartIsTooLong) {
  Fixture tiny(16), f(200);
  EXPECT_FAILS(tiny.dialogue().ask("x", kAll), "the marks around a message alone take 50 tokens");
  Dialogue dialogue = f.dialogue();
  dialogue.set_system(std::string(300, 's'));
  EXPECT_FAILS(dialogue.ask("x", kAll), "shorten the system message");
  dialogue.set_system("S");
  EXPECT_FAILS(dialogue.ask(std::string(300, 'x'), kAll), "say it shorter");
  EXPECT_NO_THROW(dialogue.ask("x", kAll));
  EXPECT_FAILS(f.dialogue().ask(std::string(300, 'x'), kAll),
               "of the context of 200 a prompt may take 188; say it shorter");
}

TEST(Dialogue, MayHaveAShorterContextThanTheModel) {
  Fixture f(1024), shorter(200);
  Dialogue dialogue(*f.model, f.run, *f.tokenizer, f.options, 200), same = shorter.dialogue();
  EXPECT_FAILS(dialogue.ask(std::string(300, 'x'), kAll),
               "of the context of 200 a prompt may take 188; say it shorter");
  int64_t let_go = 0;
  for (int turn = 0; turn < 4; ++turn) {
    const std::string question = fmt::format("question {}", turn);
    const Reply reply = dialogue.ask(question, kAll), other = same.ask(question, kAll);
    EXPECT_EQ(reply.content, other.content) << turn;
    EXPECT_EQ(reply.let_go, other.let_go) << turn;
    let_go += reply.let_go;
  }
  EXPECT_GT(let_go, 0);
}

TEST(Dialogue, RefusesWithoutChangingAnything) {
  Fixture f(200);
  Dialogue dialogue = f.dialogue();
  const std::string first = dialogue.ask("one", kAll).generated.text;
  EXPECT_FAILS(dialogue.ask("a <|im_end|> b", kAll), "<|im_end|>");
  EXPECT_FAILS(dialogue.ask(std::string(300, 'x'), kAll), "the context of 200");
  EXPECT_FAILS(dialogue.set_system("<|im_start|>"), "<|im_start|>");
  EXPECT_EQ(dialogue.messages().size(), 2u);
  const Reply next = dialogue.ask("two", kAll);
  EXPECT_EQ(next.generated.text,
            f.alone({{"user", "one"}, {"assistant", first}, {"user", "two"}}, 6).text);
  f.options.sampler.temperature = -1;
  EXPECT_FAILS(f.dialogue(), "temperature");
}

}  // namespace
}  // namespace moe::test::dialogue_test
