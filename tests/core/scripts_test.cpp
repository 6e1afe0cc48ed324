// Holds the shell scripts to what `set -e` can see: of `a && b` only b's failure ends a script, of
// `! a` none, so that a check written so may pass whatever happens. Each step stands on a line of
// its own, or in an `if`. Checked twice: on lines made to break the rule, and on the scripts
// themselves.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace moe::scripts_test {
namespace {

// One past the end of what opens at `at`: a string, a substitution, brackets or a comment.
size_t behind(std::string_view s, size_t at);

size_t behind_bracket(std::string_view s, size_t at, char close) {
  for (++at; at < s.size() && s[at] != close;) at = behind(s, at);
  return at + 1;
}

size_t behind(std::string_view s, size_t at) {
  const auto opens = [&](std::string_view what) { return s.substr(at, what.size()) == what; };
  const bool begins =
      at == 0 || std::string_view(" \t\n;(").find(s[at - 1]) != std::string_view::npos;
  if (s[at] == '\\') return at + 2;
  if (s[at] == '\'') return s.find('\'', at + 1) == s.npos ? s.size() : s.find('\'', at + 1) + 1;
  if (s[at] == '"') {
    for (++at; at < s.size() && s[at] != '"';)
      at = s[at] == '\\' || s.substr(at, 2) == "$(" || s.substr(at, 2) == "${" ? behind(s, at)
                                                                               : at + 1;
    return at + 1;
  }
  if (opens("${")) return behind_bracket(s, at + 1, '}');
  if (opens("$(")) return behind_bracket(s, at + 1, ')');
  if (s[at] == '(') return behind_bracket(s, at, ')');
  if (opens("[[ ")) return std::min(s.find("]]", at), s.size() - 2) + 2;
  if (s[at] == '#' && begins) return std::min(s.find('\n', at), s.size());
  if (opens("<<'END'") || opens("<<END")) return std::min(s.find("\nEND\n", at), s.size() - 4) + 4;
  return at + 1;
}

bool starts_with_word(std::string_view s, std::string_view word) {
  return s.starts_with(word) && (s.size() == word.size() || s[word.size()] == ' ');
}

struct Fault {
  std::string where, statement;
};

// The statement without what stands in strings and brackets, and whether it breaks the rule.
// `last`: of a subshell, whose status it is.
class Scan {
 public:
  explicit Scan(std::string_view script) { statements(script, 0, false); }
  std::vector<Fault> faults;

 private:
  void judge(std::string statement, size_t line, bool last) {
    statement.erase(0, statement.find_first_not_of(" \t\n"));
    for (const char* word : {"then", "else", "do"})
      if (starts_with_word(statement, word)) statement.erase(0, std::string_view(word).size() + 1);
    for (const char* word : {"if", "elif", "while", "until"})
      if (starts_with_word(statement, word)) return;
    const bool chain = statement.find("&&") != std::string::npos &&
                       statement.find("||", statement.rfind("&&")) == std::string::npos;
    if (!last && (chain || starts_with_word(statement, "!")))
      faults.push_back({std::to_string(line), statement});
  }
  void statements(std::string_view s, size_t first_line, bool subshell) {
    std::string statement;
    size_t line = first_line;
    const auto end = [&](bool last) {
      judge(statement, line + 1, last);
      statement.clear();
    };
    for (size_t at = 0; at < s.size();) {
      if (s[at] == '\n') {
        const size_t full = statement.find_last_not_of(" \t");
        if (full == std::string::npos || (statement[full] != '&' && statement[full] != '|'))
          end(false);
      } else if (s[at] == ';' || s[at] == '{' || s[at] == '}' || s[at] == ')') {
        end(false);
      }
      const size_t next = std::min(behind(s, at), s.size());
      if (statement.find_first_not_of(" \t\n") == std::string::npos)
        line = first_line +
               static_cast<size_t>(std::count(s.begin(), s.begin() + static_cast<long>(at), '\n'));
      if (s[at] == '(')
        statements(s.substr(at + 1, next - at - 2),
                   first_line + static_cast<size_t>(
                                    std::count(s.begin(), s.begin() + static_cast<long>(at), '\n')),
                   true);
      else if (next == at + 1 && std::string_view(";{})").find(s[at]) == std::string_view::npos)
        statement += s[at];
      else if (next > at + 1 && s[at] != '#' && s[at] != '\\') statement += '_';
      at = next;
    }
    end(subshell);
  }
};

std::vector<Fault> faults_of(std::string_view script) { return Scan(script).faults; }

TEST(Scripts, WhatSetECannotSeeIsFound) {
  for (const char* bad :
       {"[ $code = 1 ] && grep -q absent log\n", "! grep -q x log\n", "f() { ! grep -q x log; }\n",
        "run >got && same wanted got\necho\n", "if a; then\n  b && c\nfi\n", "  a || b && c\n",
        "( a && b\n  c )\n", "while a; do ! b; done\n", "a &&\n  b\nc\n", "x) a && b ;;\n"})
    EXPECT_EQ(faults_of(bad).size(), 1u) << bad;
}

TEST(Scripts, WhatItSeesIsLeftAlone) {
  for (const char* good :
       {"if a && ! b; then c; fi\n", "while [ a ] && b; do c; done\n", "a && b || return 1\n",
        "(cd x && y) >z\n", "here=$(cd x && pwd)\n", "echo \"a && $(b && c)\"\n",
        "awk '! a && b' x\n", "# a && b\n", "[[ a && b ]] || c\n", "cat <<'END'\na && b\nEND\n",
        "[ ${#x[@]} -gt 0 ] || c\n", "elif a && b; then c; fi\n"})
    EXPECT_EQ(faults_of(good).size(), 0u) << good;
}

TEST(Scripts, EveryStepOfOurScriptsCanFail) {
  namespace fs = std::filesystem;
  const fs::path root = fs::path(MOE_TEST_DATA) / "../..";
  std::vector<fs::path> scripts = {root / ".ci/run"};
  for (const char* folder : {"scripts", "bench"})
    for (const auto& entry : fs::directory_iterator(root / folder))
      if (entry.path().extension() == ".sh") scripts.push_back(entry.path());
  ASSERT_GE(scripts.size(), 10u);
  for (const fs::path& script : scripts) {
    std::ifstream file(script);
    std::stringstream text;
    text << file.rdbuf();
    ASSERT_FALSE(text.str().empty()) << script;
    EXPECT_NE(text.str().find("set -euo pipefail") == std::string::npos,
              text.str().starts_with("#!"))
        << script << ": a script begins with set -euo pipefail";
    for (const Fault& fault : faults_of(text.str()))
      ADD_FAILURE() << script.lexically_normal().string() << ":" << fault.where
                    << ": set -e does not see what fails here: " << fault.statement;
  }
}

}  // namespace
}  // namespace moe::scripts_test
