// What writes the seeds of fuzzers: each function those of one, into the folder it is given.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

namespace moe {

inline void put(const std::string& folder, const std::string& name, const std::string& content) {
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/" + name, std::ios::binary) << content;
}

// Of what reads texts, words and requests (seeds_of_texts.cpp).
void json_seeds(const std::string& folder);
void tokenizer_seeds(const std::string& folder);
void ggml_vocab_seeds(const std::string& folder);
void sentencepiece_seeds(const std::string& folder);
void shards_seeds(const std::string& folder);
void jinja_seeds(const std::string& folder);
void chat_request_seeds(const std::string& folder);
void tool_calls_seeds(const std::string& folder);
void serve_seeds(const std::string& folder);
void grammar_seeds(const std::string& folder);

}  // namespace moe
