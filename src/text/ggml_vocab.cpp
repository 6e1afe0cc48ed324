// Both ways between llama.cpp's vocabulary and ours. A "llama" vocabulary has scores instead of
// merges: of all pairs in a text that are a token together the highest score is merged first
// (SentencePiece's BPE; llama.cpp, llm_tokenizer_spm), so every way to cut a token in two is a
// merge of its score's rank.
#include "text/ggml_vocab.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <utility>

#include "core/error.h"
#include "core/json.h"
#include "core/nearest.h"
#include "text/bpe.h"
#include "text/byte_alphabet.h"
#include "text/charsmap.h"
#include "text/chat.h"
#include "text/ggml_pre.h"
#include "text/utf8.h"

namespace moe {
namespace {

constexpr size_t kMostTokenBytes = 1024;  // where tokens are cut in every place, or tried on a text
constexpr std::string_view kMerged = "gemma4";  // over characters, as "llama", but with merges
enum Type : int32_t {
  normal = 1,
  unknown = 2,
  control = 3,
  user_defined = 4,
  unused = 5,
  byte = 6
};

// What ends a reply in llama.cpp by its text, whatever the keys say
// (llama.cpp/src/llama-vocab.cpp, special_eog_ids).
constexpr std::string_view kEndsByText[] = {"<|eot_id|>",
                                            "<|im_end|>",
                                            "<|end|>",
                                            "<|return|>",
                                            "<|call|>",
                                            "<|flush|>",
                                            "<|calls|>",
                                            "<end_of_turn>",
                                            "</s>",
                                            "<|eom_id|>",
                                            "<|endoftext|>",
                                            "<EOT>",
                                            "_<EOT>",
                                            "[EOT]",
                                            "[EOS]",
                                            "<eos>",
                                            "<|end_of_text|>",
                                            "<turn|>",
                                            "<|tool_response>",
                                            "<end_of_utterance>"};

using IdOf = std::map<std::string_view, int32_t>;

void check(const GgmlVocab& vocab) {
  const size_t size = vocab.tokens.size();
  if (size == 0 || size > static_cast<size_t>(kMaxVocab))
    fail("it has {} tokens; 1 to {} are supported", size, kMaxVocab);
  if (!vocab.types.empty() && vocab.types.size() != size)
    fail("it has {} token types for {} tokens", vocab.types.size(), size);
  const bool has_merges = vocab.model == "gpt2" || vocab.model == kMerged;
  for (const std::string& token : vocab.tokens) {
    if (!has_merges && token.size() > kMostTokenBytes)
      fail("a token has {} bytes; at most {} are supported", token.size(), kMostTokenBytes);
    for (size_t at = 0; at < token.size();) {
      const Utf8Step step = utf8_step(std::string_view(token).substr(at));
      if (step.kind != Utf8Step::Kind::character)
        fail("the token \"{}\" is not UTF-8", printable(token, 40));
      at += static_cast<size_t>(step.length);
    }
  }
  for (const int32_t type : vocab.types)
    if (type < normal || type > byte) fail("a token has the type {}; known are 1 to 6", type);
  const auto in_range = [&](const char* name, const std::optional<int32_t>& id) {
    if (id && (*id < 0 || static_cast<size_t>(*id) >= size))
      fail("its {} token is {}, and it has {} tokens", name, *id, size);
  };
  in_range("bos", vocab.bos);
  // tokenizer.json names it by its text, which a byte need not be.
  if (vocab.bos && !vocab.types.empty() && vocab.types[static_cast<size_t>(*vocab.bos)] == byte)
    fail("its bos token {} is a byte", *vocab.bos);
  in_range("eos", vocab.eos);
  in_range("eot", vocab.eot);
  in_range("eom", vocab.eom);
  for (const int32_t end : vocab.more_ends) in_range("end", end);
  in_range("unknown", vocab.unk);
  if (vocab.add_eos.value_or(false))
    fail("it puts a token behind a text, which a model could not continue");
}

int32_t type_of(const GgmlVocab& vocab, size_t id) {
  return vocab.types.empty() ? static_cast<int32_t>(normal) : vocab.types[id];
}

IdOf ids_of(const GgmlVocab& vocab) {
  IdOf ids;
  for (size_t id = 0; id < vocab.tokens.size(); ++id) {
    if (vocab.tokens[id].empty()) continue;
    const auto [place, is_new] = ids.emplace(vocab.tokens[id], static_cast<int32_t>(id));
    if (!is_new && type_of(vocab, id) != unused)
      fail("the token \"{}\" occurs twice, as {} and {}", printable(vocab.tokens[id], 40),
           place->second, id);
  }
  return ids;
}

// Tokens that are looked for in the text before all else.
void add_marks(const GgmlVocab& vocab, BpeParts& parts) {
  for (size_t id = 0; id < vocab.tokens.size(); ++id) {
    const int32_t type = type_of(vocab, id);
    if (type != control && type != user_defined && type != unknown) continue;
    if (vocab.tokens[id].empty()) continue;
    parts.pieces[id] = parts.characters ? word_bytes(vocab.tokens[id]) : vocab.tokens[id];
    parts.added.push_back({static_cast<int32_t>(id), vocab.tokens[id], type != user_defined});
  }
}

int32_t id_in(const IdOf& ids, std::string_view token) {
  const auto place = ids.find(token);
  return place == ids.end() ? -1 : place->second;
}

std::vector<Merge> listed_merges(const GgmlVocab& vocab, const IdOf& ids) {
  if (vocab.merges.size() > static_cast<size_t>(kMaxVocab))
    fail("it has {} merges; at most {} are supported", vocab.merges.size(), kMaxVocab);
  std::vector<Merge> merges;
  for (size_t i = 0; i < vocab.merges.size(); ++i) {
    const std::string& merge = vocab.merges[i];
    const size_t space = merge.find(' ');
    if (space == std::string::npos) fail("merge {} is not two tokens", i);
    const std::string left = merge.substr(0, space), right = merge.substr(space + 1);
    const Merge made{id_in(ids, left), id_in(ids, right), id_in(ids, left + right)};
    if (made.left < 0 || made.right < 0 || made.result < 0)
      fail("merge {} (\"{}\") names what is no token", i, printable(merge, 60));
    merges.push_back(made);
  }
  return merges;
}

void read_bytes(const GgmlVocab& vocab, BpeParts& parts) {
  const GgmlPre& pre = ggml_pre(vocab.pre);
  parts.patterns = pre.patterns;
  parts.ignore_merges = pre.ignore_merges;
  if (pre.nfc) parts.normalizer.push_back({NormalizerStep::Kind::nfc, "", ""});
  const IdOf ids = ids_of(vocab);
  parts.in_vocab.resize(vocab.tokens.size());
  for (size_t id = 0; id < vocab.tokens.size(); ++id) {
    if (type_of(vocab, id) == unused) continue;
    const std::optional<std::string> bytes = from_alphabet(vocab.tokens[id]);
    parts.in_vocab[id] = bytes.has_value() && type_of(vocab, id) == normal;
    parts.pieces[id] = bytes.value_or(vocab.tokens[id]);
  }
  for (size_t b = 0; b < 256; ++b) parts.byte_ids[b] = id_in(ids, byte_alphabet()[b]);
  parts.merges = listed_merges(vocab, ids);
  add_marks(vocab, parts);
}

// Every cut of every token into two tokens, best score first; within a score as Hugging Face's
// converter lists them, by the ids of the two.
std::vector<Merge> merges_of_scores(const std::vector<std::string>& words,
                                    const std::vector<float>& scores, const IdOf& ids) {
  std::vector<Merge> merges;
  for (size_t id = 0; id < words.size(); ++id) {
    const std::string_view word = words[id];
    for (size_t cut = 1; cut < word.size(); ++cut) {
      if (!begins_character(word[cut])) continue;
      const auto left = ids.find(word.substr(0, cut));
      const auto right = left == ids.end() ? left : ids.find(word.substr(cut));
      if (right != ids.end())
        merges.push_back({left->second, right->second, static_cast<int32_t>(id)});
    }
  }
  const auto score = [&](const Merge& m) { return scores[static_cast<size_t>(m.result)]; };
  std::sort(merges.begin(), merges.end(), [&](const Merge& a, const Merge& b) {
    if (score(a) != score(b)) return score(a) > score(b);
    return std::tie(a.result, a.left, a.right) < std::tie(b.result, b.left, b.right);
  });
  for (size_t i = 0; i < merges.size(); ++i)
    merges[i].rank =
        i == 0 ? 0 : merges[i - 1].rank + (score(merges[i]) != score(merges[i - 1]) ? 1 : 0);
  return merges;
}

// What is done to a text before words are looked for.
std::vector<NormalizerStep> normalizer_of(const GgmlVocab& vocab, bool prepends) {
  using Kind = NormalizerStep::Kind;
  const bool trims = vocab.remove_extra_whitespaces.value_or(false);
  if (vocab.model == "t5" || trims || !vocab.charsmap.empty()) {
    (void)Charsmap(vocab.charsmap);
    return {{Kind::sentencepiece, vocab.charsmap, "", trims, prepends}};
  }
  std::vector<NormalizerStep> steps;
  if (prepends) steps.push_back({Kind::prepend, "", std::string(kSpaceMark)});
  steps.push_back({Kind::replace, " ", std::string(kSpaceMark)});
  return steps;
}

// Words that SentencePiece looks for in a text; the others stand for themselves only as marks.
std::vector<double> unigram_scores(const GgmlVocab& vocab) {
  std::vector<double> scores(vocab.scores.begin(), vocab.scores.end());
  bool any = false;
  for (size_t id = 0; id < vocab.tokens.size(); ++id)
    if (type_of(vocab, id) == normal) any = true;
    else scores[id] = std::nan("");
  if (!any) fail("it has no token of the type 1 (normal)");
  return scores;
}

void read_characters(const GgmlVocab& vocab, BpeParts& parts) {
  const bool scored = vocab.model != kMerged;
  if (scored && vocab.scores.size() != vocab.tokens.size())
    fail("it has {} scores for {} tokens", vocab.scores.size(), vocab.tokens.size());
  if (scored &&
      std::any_of(vocab.scores.begin(), vocab.scores.end(), [](float s) { return std::isnan(s); }))
    fail("one of its scores is no number");
  const IdOf ids = ids_of(vocab);
  Characters form;
  form.words = vocab.tokens;
  const bool unigram = vocab.model == "t5";
  form.byte_fallback = !unigram || ids.contains(byte_token(0));
  parts.unk = vocab.unk;
  parts.fuse_unk = true;
  for (size_t id = 0; id < vocab.tokens.size(); ++id)
    if (type_of(vocab, id) == unused) form.words[id].clear();
    else parts.pieces[id] = word_bytes(vocab.tokens[id]);
  for (int b = 0; b < 256 && form.byte_fallback; ++b)
    if (!ids.contains(byte_token(b))) fail("byte {} is no token", b);
  if (unigram) form.scores = unigram_scores(vocab);
  else if (scored) parts.merges = merges_of_scores(form.words, vocab.scores, ids);
  else parts.merges = listed_merges(vocab, ids);
  // as llama.cpp has it
  const bool prepends = vocab.add_space_prefix.value_or(scored && !unigram);
  parts.normalizer = normalizer_of(vocab, prepends);
  form.strip = prepends ? 1 : 0;
  parts.characters = std::move(form);
  add_marks(vocab, parts);
}

constexpr const char *kChatTemplate = "chat_template", *kTemplateName = "name",
                     *kTemplateText = "template", *kUnnamed = "default";

// As tokenizer_config.json has them: one by itself, several in a list, of which one is the default.
Json templates_json(const GgmlVocab& vocab) {
  if (vocab.named_templates.empty()) return vocab.chat_template;
  Json list = Json::array({{{kTemplateName, kUnnamed}, {kTemplateText, vocab.chat_template}}});
  for (const auto& [name, text] : vocab.named_templates)
    list.push_back({{kTemplateName, name}, {kTemplateText, text}});
  return list;
}

// What tokenizer_config.json says beside the ids, so that a folder made of the file says it too.
std::string config_of(const GgmlVocab& vocab, bool add_bos) {
  Json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                 {"clean_up_tokenization_spaces", false},
                 {"add_bos_token", add_bos}};
  const auto name = [&](const char* key, const std::optional<int32_t>& id) {
    if (id) config[key] = vocab.tokens[static_cast<size_t>(*id)];
  };
  name("bos_token", vocab.bos);
  name("eos_token", vocab.eos);
  name("unk_token", vocab.unk);
  name("pad_token", vocab.pad);
  if (!vocab.chat_template.empty()) config[kChatTemplate] = templates_json(vocab);
  return config.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace

std::unique_ptr<Tokenizer> make_ggml_tokenizer(GgmlVocab vocab, const std::string& where) {
  try {
    check(vocab);
    if (vocab.pad && (*vocab.pad < 0 || static_cast<size_t>(*vocab.pad) >= vocab.tokens.size()))
      vocab.pad.reset();  // nothing here pads
    BpeParts parts;
    parts.pieces.resize(vocab.tokens.size());
    const bool over_bytes = vocab.model == "gpt2";
    if (over_bytes) read_bytes(vocab, parts);
    else if (vocab.model == "llama" || vocab.model == "t5" || vocab.model == kMerged)
      read_characters(vocab, parts);
    else
      fail("its tokenizer.ggml.model is \"{}\"; supported are gpt2, llama, t5 and gemma4",
           printable(vocab.model, 40));
    // Where a file does not say: as llama.cpp has it for these names.
    const auto pre_adds_bos = [](std::string_view name) {
      return name == "llama-bpe" || name == "tekken";
    };
    const bool add_bos =
        vocab.bos && vocab.add_bos.value_or(over_bytes ? pre_adds_bos(ggml_pre(vocab.pre).names[0])
                                                       : vocab.model != "t5");
    parts.special = {vocab.bos, vocab.eos, add_bos, {}};
    std::set<std::optional<int32_t>> known = {std::nullopt, vocab.eos};
    std::vector<std::optional<int32_t>> ends = {vocab.eot, vocab.eom};
    ends.insert(ends.end(), vocab.more_ends.begin(), vocab.more_ends.end());
    for (const std::optional<int32_t>& end : ends)
      if (known.insert(end).second) parts.special.ends.push_back(*end);
    std::unique_ptr<Tokenizer> tokenizer = make_bpe(std::move(parts));
    tokenizer->set_config_json(config_of(vocab, add_bos));
    return tokenizer;
  } catch (const Error& e) {
    fail("{}: this tokenizer is not supported: {}", where, e.what());
  }
}

namespace {

// The name llama.cpp has for a way to split; a row that composes the text or not, as the tokenizer
// does, is preferred, but llama.cpp never composes.
const GgmlPre& pre_of(const BpeParts& parts) {
  const bool nfc = !parts.normalizer.empty();
  if (nfc && parts.normalizer != std::vector<NormalizerStep>{{NormalizerStep::Kind::nfc, "", ""}})
    fail("llama.cpp has no word for its normalizer");
  const GgmlPre* found = nullptr;
  for (const GgmlPre& row : ggml_pres()) {
    // A tokenizer without merges keeps its bytes apart however a text is split.
    if (row.patterns != parts.patterns && !parts.merges.empty()) continue;
    if (row.ignore_merges != parts.ignore_merges) continue;
    if (row.nfc == nfc) return row;
    if (!found) found = &row;
  }
  if (!found)
    fail("llama.cpp has no name for the way it splits a text{}",
         parts.ignore_merges ? " and takes whole words" : "");
  return *found;
}

void write_merges(const BpeParts& parts, GgmlVocab& vocab) {
  const auto name = [&](int32_t id) { return to_alphabet(parts.pieces[static_cast<size_t>(id)]); };
  for (const Merge& m : parts.merges) vocab.merges.push_back(name(m.left) + " " + name(m.right));
}

// Scores whose merging is that of the merges: those of one token stand together, and are all the
// ways to cut it in two.
void write_scores(const BpeParts& parts, GgmlVocab& vocab) {
  const std::vector<std::string>& words = parts.characters->words;
  vocab.scores.assign(words.size(), 0);
  IdOf ids;
  for (size_t id = 0; id < words.size(); ++id)
    if (!words[id].empty()) ids.emplace(words[id], static_cast<int32_t>(id));
  std::vector<bool> made(words.size());
  std::set<std::pair<int32_t, int32_t>> listed;
  int32_t last = -1, groups = 0;
  for (const Merge& m : parts.merges) {
    listed.emplace(m.left, m.right);
    if (m.result == last) continue;
    last = m.result;
    if (made[static_cast<size_t>(last)])
      fail("its merges of the token \"{}\" do not stand together, which scores cannot say",
           printable(words[static_cast<size_t>(last)], 40));
    made[static_cast<size_t>(last)] = true;
    vocab.scores[static_cast<size_t>(last)] = -static_cast<float>(groups++);
  }
  for (size_t id = 0; id < words.size(); ++id)
    if (!made[id] && vocab.types[id] == normal) vocab.scores[id] = -static_cast<float>(groups++);
  for (const Merge& m : merges_of_scores(words, vocab.scores, ids))
    if (!listed.contains({m.left, m.right}))
      fail("its merges leave out one way to make the token \"{}\", which scores cannot say",
           printable(words[static_cast<size_t>(m.result)], 40));
}

// Of the tokens all but those looked for in a text are marked otherwise already, or are bytes.
void write_unigram(const Characters& form, GgmlVocab& vocab) {
  vocab.model = "t5";
  for (size_t id = 0; id < form.words.size(); ++id) {
    const double score = (*form.scores)[id];
    vocab.scores.push_back(std::isnan(score) ? 0 : static_cast<float>(score));
    if (form.byte_fallback && vocab.types[id] == normal && is_byte_token(form.words[id]))
      vocab.types[id] = byte;
  }
}

void write_characters(const BpeParts& parts, GgmlVocab& vocab) {
  const Characters& form = *parts.characters;
  vocab.unk = parts.unk;
  if (const NormalizerStep* own = own_form(parts)) {
    vocab.charsmap = own->what;
    vocab.remove_extra_whitespaces = own->trims;
    vocab.add_space_prefix = own->prepends;
    if (form.scores) return write_unigram(form, vocab);
    fail("llama.cpp has no word for the normalizer of its BPE");
  }
  if (form.scores)
    fail("llama.cpp splits and normalises a text only as SentencePiece's own file says it");
  using Kind = NormalizerStep::Kind;
  const NormalizerStep mark{Kind::replace, " ", std::string(kSpaceMark)},
      front{Kind::prepend, "", std::string(kSpaceMark)};
  const bool by_steps = !form.metaspace && (parts.normalizer == std::vector{front, mark} ||
                                            parts.normalizer == std::vector{mark});
  const bool by_metaspace = form.metaspace && parts.normalizer.empty() && !form.metaspace->split;
  if (!by_steps && !by_metaspace)
    fail("llama.cpp has no word for its normalizer and pre_tokenizer");
  if (parts.ignore_merges || !parts.added_late.empty())
    fail("llama.cpp has no word for its {}",
         parts.ignore_merges ? "ignore_merges" : "normalized added tokens");
  vocab.add_space_prefix = by_steps ? parts.normalizer.size() == 2
                                    : form.metaspace->prepend != Metaspace::Prepend::never;
  for (int b = 0; b < 256; ++b) {
    const auto place = std::find(form.words.begin(), form.words.end(), byte_token(b));
    if (place == form.words.end() || !form.byte_fallback) fail("byte {} is no token", b);
    vocab.types[static_cast<size_t>(place - form.words.begin())] = byte;
  }
  write_scores(parts, vocab);
}

// The templates beside the default one; a key of a GGUF holds the name, of letters and digits.
std::map<std::string, std::string> named_templates(const Tokenizer& tokenizer) {
  std::map<std::string, std::string> named;
  const auto templates = chat_templates_of(tokenizer);
  if (!templates) return named;
  for (const auto& [name, text] : *templates) {
    if (name == kUnnamed || name.empty()) continue;
    std::string key = name;
    for (char& c : key)
      if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
    named.emplace(std::move(key), text);
  }
  return named;
}

bool ends_by_text(const GgmlVocab& vocab, int32_t id) {
  return std::ranges::find(kEndsByText, vocab.tokens[static_cast<size_t>(id)]) !=
         std::end(kEndsByText);
}

// There are two keys beside eos. Where more tokens end a reply they go to those that llama.cpp does
// not know otherwise.
void write_ends(std::vector<int32_t> ends, GgmlVocab& vocab) {
  if (ends.size() > 2)
    std::stable_partition(ends.begin(), ends.end(),
                          [&](int32_t id) { return !ends_by_text(vocab, id); });
  if (!ends.empty()) vocab.eot = ends[0];
  if (ends.size() > 1) vocab.eom = ends[1];
  if (ends.size() > 2) vocab.more_ends.assign(ends.begin() + 2, ends.end());
}

}  // namespace

std::vector<int32_t> ends_unknown_to_llama_cpp(const GgmlVocab& vocab) {
  std::vector<int32_t> unknown = vocab.more_ends;
  std::erase_if(unknown, [&](int32_t id) { return ends_by_text(vocab, id); });
  return unknown;
}

GgmlVocab ggml_vocab_of(const Tokenizer& tokenizer) {
  constexpr const char* kFile = "tokenizer.json";
  const std::string json = tokenizer.to_json();
  const BpeParts parts = read_bpe(parse_json(json, kFile), json, kFile);
  GgmlVocab vocab;
  try {
    vocab.model = parts.characters ? "llama" : "gpt2";
    for (size_t id = 0; id < parts.pieces.size(); ++id) {
      const std::string name =
          parts.characters ? parts.characters->words[id] : to_alphabet(parts.pieces[id]);
      vocab.types.push_back(name.empty() ? unused : normal);
      vocab.tokens.push_back(name.empty() ? fmt::format("[PAD{}]", id) : name);
    }
    for (const std::vector<AddedToken>* tokens : {&parts.added, &parts.added_late})
      for (const AddedToken& token : *tokens) {
        vocab.tokens[static_cast<size_t>(token.id)] = token.content;
        vocab.types[static_cast<size_t>(token.id)] = token.special ? control : user_defined;
      }
    if (parts.characters) {
      write_characters(parts, vocab);
      if (vocab.unk) vocab.types[static_cast<size_t>(*vocab.unk)] = unknown;
    } else {
      vocab.pre = pre_of(parts).names[0];
      write_merges(parts, vocab);
    }
  } catch (const Error& e) {
    fail("this tokenizer cannot be written into a GGUF file: {}", e.what());
  }
  const SpecialIds& special = tokenizer.special();
  vocab.bos = special.bos;
  vocab.eos = special.eos;
  write_ends(special.ends, vocab);
  vocab.add_bos = special.add_bos;
  vocab.add_eos = false;
  vocab.chat_template = chat_template_of(tokenizer);
  vocab.named_templates = named_templates(tokenizer);
  return vocab;
}

}  // namespace moe
