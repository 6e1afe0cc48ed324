// Holds what users and newcomers read to the tree it describes: every path that a document names is
// there, every link leads somewhere, and every name of docs/math.md occurs in the code. The rules
// are checked twice: on texts made to break them, and on the documents themselves. Another
// project's file is written with the project before it: llama.cpp/src/llama-quant.cpp.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace moe::documents_test {
namespace {

namespace fs = std::filesystem;

using Names = std::set<std::string>;
using Faults = std::vector<std::string>;
using IsThere = std::function<bool(const std::string& path)>;

const Names& kinds_of_files() {
  static const Names kinds = {"c", "cpp", "h", "hpp", "md", "pl", "py", "sh", "svg"};
  return kinds;
}

bool is_path_letter(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
         std::string_view("_./-").find(c) != std::string_view::npos;
}

// Words of a text that look like the path of a file below one of these folders: "src/moe/plan.cpp".
// Not where more stands before it: "out/src/x.cpp",
// "$d/src/x.cpp".
std::vector<std::string> paths_in(const std::string& text, const Names& folders) {
  std::vector<std::string> paths;
  for (size_t at = 0; at < text.size();) {
    if (!is_path_letter(text[at])) {
      ++at;
      continue;
    }
    size_t end = at;
    while (end < text.size() && is_path_letter(text[end])) ++end;
    std::string word = text.substr(at, end - at);
    const bool follows =
        at > 0 && std::string_view("~$}:{*<").find(text[at - 1]) != std::string_view::npos;
    at = end;
    while (word.ends_with('.')) word.pop_back();
    if (word.starts_with("./")) word.erase(0, 2);
    const size_t slash = word.find('/'), dot = word.rfind('.');
    if (follows || slash == std::string::npos || dot == std::string::npos || dot < slash) continue;
    if (folders.contains(word.substr(0, slash)) && kinds_of_files().contains(word.substr(dot + 1)))
      paths.push_back(word);
  }
  return paths;
}

// A document without its blocks of code.
std::string prose_of(const std::string& text) {
  std::string prose;
  std::istringstream lines(text);
  bool in_block = false;
  for (std::string line; std::getline(lines, line);) {
    const bool fence = line.starts_with("```");
    if (fence) in_block = !in_block;
    if (!in_block && !fence) prose += line + "\n";
  }
  return prose;
}

// The targets of Markdown's links and pictures: [text](target).
std::vector<std::string> links_in(const std::string& prose) {
  std::vector<std::string> targets;
  for (size_t at = prose.find("]("); at != std::string::npos; at = prose.find("](", at + 2)) {
    const size_t end = prose.find_first_of(")\n", at);
    if (end != std::string::npos && prose[end] == ')')
      targets.push_back(prose.substr(at + 2, end - at - 2));
  }
  return targets;
}

// The anchors of a document's headings as GitHub makes them: small letters, spaces to dashes, no
// punctuation.
Names anchors_of(const std::string& prose) {
  Names anchors;
  std::istringstream lines(prose);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with('#')) continue;
    std::string anchor;
    for (const char c : line.substr(std::min(line.size(), line.find_first_not_of("# ")))) {
      if (c == ' ') anchor += '-';
      else if (std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_')
        anchor += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
    anchors.insert(anchor);
  }
  return anchors;
}

// Names in `backticks`: of functions, types and parts of them.
std::vector<std::string> code_names_in(const std::string& prose) {
  std::vector<std::string> names;
  std::istringstream lines(prose);
  for (std::string line; std::getline(lines, line);) {
    for (size_t open = line.find('`'); open != std::string::npos;) {
      const size_t close = line.find('`', open + 1);
      if (close == std::string::npos) break;
      const std::string code = line.substr(open + 1, close - open - 1);
      open = line.find('`', close + 1);
      // a path, a flag
      if (code.find('/') != std::string::npos || code.starts_with("--")) continue;
      std::string name;
      for (const char c : code + " ") {
        if (std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_') name += c;
        else if (!name.empty()) names.push_back(std::exchange(name, ""));
      }
    }
  }
  return names;
}

std::string read_text(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("cannot read " + path.string());
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

void check_paths(const std::string& document, const std::string& text, const Names& folders,
                 const IsThere& is_there, Faults& faults) {
  for (const std::string& path : paths_in(text, folders))
    if (!is_there(path) && !is_there("src/" + path) && !is_there("include/" + path))
      faults.push_back(document + " names " + path + ", which is not there");
}

// Domains of the default corpus, named as its files are: data/corpus/train/german.txt.
// `corpus_script` has a line for each source that begins with its domain.
void check_domains(const std::string& document, const std::string& text,
                   const std::string& corpus_script, Faults& faults) {
  for (const char* folder : {"data/corpus/train/", "data/corpus/valid/"})
    for (size_t at = text.find(folder); at != std::string::npos; at = text.find(folder, at + 1)) {
      const size_t begin = at + std::string_view(folder).size(), end = text.find(".txt", begin);
      const std::string domain = text.substr(begin, end == std::string::npos ? 0 : end - begin);
      const bool is_name =
          !domain.empty() && std::all_of(domain.begin(), domain.end(),
                                         [](unsigned char c) { return std::islower(c) != 0; });
      if (is_name && corpus_script.find("\n" + domain + " ") == std::string::npos)
        faults.push_back(document + " names the domain " + domain +
                         ", which the default corpus has not");
    }
}

// `text_of`: a document by its path; throws where there is none.
void check_links(const std::string& document, const std::string& text, const IsThere& is_there,
                 const std::function<std::string(const std::string&)>& text_of, Faults& faults) {
  for (const std::string& target : links_in(prose_of(text))) {
    if (target.find("://") != std::string::npos) continue;
    const size_t hash = target.find('#');
    const std::string file = target.substr(0, hash);
    const std::string path =
        file.empty()
            ? document
            : (fs::path(document).parent_path() / file).lexically_normal().generic_string();
    if (!is_there(path))
      faults.push_back(document + " links to " + target + ", which is not there");
    else if (hash != std::string::npos &&
             !anchors_of(prose_of(text_of(path))).contains(target.substr(hash + 1)))
      faults.push_back(document + " links to " + target + ", but " + path + " has no such heading");
  }
}

void check_code_names(const std::string& document, const std::string& text, const Names& code,
                      Faults& faults) {
  for (const std::string& name : code_names_in(prose_of(text)))
    if (name.size() > 3 && !code.contains(name))
      faults.push_back(document + " names " + name + ", which no code has");
}

fs::path root() { return fs::path(MOE_TEST_DATA).parent_path().parent_path(); }

void add_files(const std::string& folder, const Names& kinds, std::vector<std::string>& files) {
  if (!fs::is_directory(root() / folder)) return;
  for (const auto& entry : fs::recursive_directory_iterator(root() / folder)) {
    const std::string kind = entry.path().extension().string();
    if (entry.is_regular_file() && kinds.contains(kind))
      files.push_back(entry.path().lexically_relative(root()).generic_string());
  }
  std::sort(files.begin(), files.end());
}

// Every word of the sources and tests.
Names words_of_code() {
  std::vector<std::string> files;
  for (const char* folder : {"src", "include", "tests"}) add_files(folder, {".h", ".cpp"}, files);
  Names words;
  std::string word;
  for (const std::string& file : files)
    for (const char c : read_text(root() / file) + "\n") {
      if (std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_') word += c;
      else if (!word.empty()) words.insert(std::exchange(word, ""));
    }
  return words;
}

// What the path of a file of ours begins with; an #include path begins below src/ or include/.
const Names& folders() {
  static const Names names = [] {
    Names all = {".ci",    "bench",   "docs", "examples", "include",
                 "python", "scripts", "src",  "tests",    "tools"};
    for (const char* base : {"src", "include"})
      for (const auto& entry : fs::directory_iterator(root() / base))
        if (entry.is_directory()) all.insert(entry.path().filename().string());
    return all;
  }();
  return names;
}

std::string join(const Faults& faults) {
  std::string text;
  for (const std::string& fault : faults) text += fault + "\n";
  return text;
}

TEST(Documents, EachFaultIsFound) {
  const IsThere is_there = [](const std::string& path) {
    return Names{"docs/a.md", "docs/b.md", "src/core/a.h"}.contains(path);
  };
  const auto text_of = [](const std::string&) {
    return std::string("# One heading: 2nd `part`\n```\n# none\n```\n");
  };
  Faults faults;
  check_paths("README.md",
              "`src/core/a.h`, ./docs/a.md. out/src/gone.cpp ggml/src/gone.c $x/docs/gone.md "
              "src/core x.cpp core/a.h (src/core/gone.h)",
              folders(), is_there, faults);
  EXPECT_EQ(join(faults), "README.md names src/core/gone.h, which is not there\n");
  faults.clear();
  check_domains(
      "docs/a.md",
      "--text data/corpus/valid/german.txt data/corpus/train/gone.txt data/corpus/train out.txt",
      "x\ngerman  prose\n", faults);
  EXPECT_EQ(join(faults), "docs/a.md names the domain gone, which the default corpus has not\n");
  faults.clear();
  check_links("docs/a.md",
              "[a](b.md) [b](../docs/b.md#one-heading-2nd-part) [c](https://x.org/y.md) "
              "[d](#one-heading-2nd-part) [e](gone.md) ![f](b.md#none)",
              is_there, text_of, faults);
  EXPECT_EQ(join(faults),
            "docs/a.md links to gone.md, which is not there\ndocs/a.md links to b.md#none, but "
            "docs/b.md has no such heading\n");
  faults.clear();
  check_code_names("docs/a.md",
                   "`Model::forward`, `gone_forward`, `--flag`, `src/x.cpp`, "
                   "forwards\n```\n`never` [x](gone.md)\n```\n",
                   {"Model", "forward"}, faults);
  EXPECT_EQ(join(faults), "docs/a.md names gone_forward, which no code has\n");
}

TEST(Documents, NameOnlyWhatIsThere) {
  std::vector<std::string> files = {"README.md", "CONTRIBUTING.md", ".ci/run"};
  for (const char* folder : {"docs", "include", "python", "examples", "scripts"})
    add_files(folder, {".md", ".h", ".hpp", ".py", ".c", ".cpp", ".sh"}, files);
  ASSERT_GT(files.size(), 30u);
  const IsThere is_there = [](const std::string& path) { return fs::exists(root() / path); };
  const std::string corpus_script = read_text(root() / "scripts/corpus.sh");
  Faults faults;
  for (const std::string& file : files) {
    const std::string text = read_text(root() / file);
    check_domains(file, text, corpus_script, faults);
    check_paths(file, text, folders(), is_there, faults);
    if (file.ends_with(".md"))
      check_links(
          file, text, is_there, [](const std::string& path) { return read_text(root() / path); },
          faults);
  }
  EXPECT_EQ(join(faults), "");
}

TEST(Documents, TheMathematicsNamesCodeThatIsThere) {
  const std::string text = read_text(root() / "docs/math.md");
  ASSERT_GT(code_names_in(prose_of(text)).size(), 100u);
  Faults faults;
  check_code_names("docs/math.md", text, words_of_code(), faults);
  EXPECT_EQ(join(faults), "");
}

}  // namespace
}  // namespace moe::documents_test
