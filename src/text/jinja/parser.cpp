// Jinja's grammar (jinja2/parser.py), as far as published chat templates use it. Precedence from
// weak to strong: if-else, or, and, not, comparisons, + and -, ~, * / // %, unary signs, **, then
// calls, subscripts, filters and tests.
#include <algorithm>
#include <charconv>
#include <initializer_list>

#include "core/error.h"
#include "text/jinja/lexer.h"
#include "text/jinja/syntax.h"

namespace moe::jinja {
namespace {

using Kind = Token::Kind;
using SKind = Statement::Kind;

constexpr int kDeepestSyntax = 200;  // tags and brackets inside each other
constexpr int kHighest = 500;        // of an expression's tree: a long sum leans to one side

class Parser {
 public:
  explicit Parser(std::string_view source) : tokens_(lex(source)) {}

  Body whole() {
    Body body = statements({});
    if (!now().is(Kind::end, "")) fail_now("is not expected");
    return body;
  }

 private:
  // ---- tokens ----------------------------------------------------------------------------------

  const Token& now() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  const Token& take() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  bool sees(std::string_view sign) const { return now().is(Kind::sign, sign); }
  bool sees_name(std::string_view name) const { return now().is(Kind::name, name); }
  bool skip(std::string_view sign) { return sees(sign) && (take(), true); }
  bool skip_name(std::string_view name) { return sees_name(name) && (take(), true); }
  [[noreturn]] void fail_now(std::string_view what) const {
    fail_at(now().line,
            fmt::format("{} {}", now().kind == Kind::end ? "the end" : now().text, what));
  }
  void need(std::string_view sign) {
    if (!skip(sign)) fail_now(fmt::format("stands where {} should", sign));
  }
  std::string need_name() {
    if (now().kind != Kind::name) fail_now("stands where a name should");
    return take().text;
  }
  void end_block() {
    if (now().kind != Kind::block_end) fail_now("stands where %} should");
    take();
  }

  struct Deeper {
    int& depth;
    Deeper(int& d, int line) : depth(d) {
      if (++depth > kDeepestSyntax) {
        --depth;
        fail_at(line,
                fmt::format("more than {} tags and brackets inside each other", kDeepestSyntax));
      }
    }
    ~Deeper() { --depth; }
  };

  ExprPtr make(Expr::Kind kind, std::string text = "") const {
    return std::make_unique<Expr>(Expr{kind, now().line, std::move(text), {}, {}, {}, 0});
  }
  // With what it is made of.
  static ExprPtr grown(ExprPtr e) {
    for (const ExprPtr& part : e->of)
      if (part) e->height = std::max(e->height, part->height + 1);
    if (e->height > kHighest) fail_at(e->line, "an expression is too long");
    return e;
  }
  ExprPtr join(Expr::Kind kind, std::string text, ExprPtr a, ExprPtr b) const {
    ExprPtr e = make(kind, std::move(text));
    e->line = a->line;
    e->of.push_back(std::move(a));
    e->of.push_back(std::move(b));
    return grown(std::move(e));
  }

  // ---- statements ------------------------------------------------------------------------------

  bool ends(std::initializer_list<std::string_view> names) const {
    return now().kind == Kind::block_begin && ahead().kind == Kind::name &&
           std::find(names.begin(), names.end(), ahead().text) != names.end();
  }

  // Up to a block tag with one of `until`, which is left where it is.
  Body statements(std::initializer_list<std::string_view> until) {
    const Deeper deeper(depth_, now().line);
    Body body;
    while (now().kind != Kind::end && !ends(until)) {
      Statement s{};
      s.line = now().line;
      if (now().kind == Kind::data) {
        s.kind = SKind::data;
        s.text = take().text;
      } else if (now().kind == Kind::print_begin) {
        take();
        s.kind = SKind::print;
        s.expr = tuple_or_one();
        if (now().kind != Kind::print_end) fail_now("stands where }} should");
        take();
      } else {
        take();
        block(s);
      }
      body.push_back(std::move(s));
    }
    if (until.size() > 0 && now().kind == Kind::end)
      fail_at(now().line, fmt::format("{{% {} %}} is missing", *(until.end() - 1)));
    return body;
  }

  void close(std::string_view name) {
    take();
    if (!skip_name(name)) fail_now("is not expected");
    end_block();
  }

  void block(Statement& s) {
    const std::string name = need_name();
    if (name == "if") return choose(s);
    if (name == "for") return loop(s);
    if (name == "set") return set(s);
    if (name == "macro") return macro(s);
    if (name == "generation") {
      s.kind = SKind::scope;
      end_block();
      s.body = statements({"endgeneration"});
      return close("endgeneration");
    }
    if (name == "break" || name == "continue") {
      if (loops_ == 0) fail_at(s.line, name + " stands outside of a loop");
      s.kind = name == "break" ? SKind::leave : SKind::next;
      return end_block();
    }
    fail_at(s.line, fmt::format("{{% {} %}} is not known here", name));
  }

  void choose(Statement& s) {
    s.kind = SKind::choose;
    s.branches.push_back({tuple_or_one(), {}});
    for (;;) {
      end_block();
      s.branches.back().body = statements({"elif", "else", "endif"});
      take();
      if (skip_name("elif")) s.branches.push_back({tuple_or_one(), {}});
      else if (skip_name("else")) s.branches.push_back({});
      else break;
    }
    skip_name("endif");
    end_block();
  }

  std::vector<std::string> targets() {
    std::vector<std::string> names;
    const bool brackets = skip("(");
    do {
      if (!names.empty() && now().kind != Kind::name) break;
      names.push_back(need_name());
    } while (skip(","));
    if (brackets) need(")");
    return names;
  }

  void loop(Statement& s) {
    s.kind = SKind::loop;
    s.targets = targets();
    if (!skip_name("in")) fail_now("stands where in should");
    s.expr = tuple_or_one(false);
    if (skip_name("if")) s.filter = expression();
    if (sees_name("recursive")) fail_now("is not known here");
    end_block();
    ++loops_;
    s.body = statements({"else", "endfor"});
    --loops_;
    take();
    if (skip_name("else")) {
      end_block();
      s.branches.push_back({nullptr, statements({"endfor"})});
      return close("endfor");
    }
    skip_name("endfor");
    end_block();
  }

  void set(Statement& s) {
    s.kind = SKind::set;
    s.targets = targets();
    if (s.targets.size() == 1 && skip(".")) s.field = need_name();
    if (skip("=")) {
      s.expr = tuple_or_one();
      return end_block();
    }
    if (s.targets.size() != 1) fail_now("stands where = should");
    if (sees("|")) {
      auto held = make(Expr::Kind::name, "");
      s.filter = filters(std::move(held));
    }
    end_block();
    s.body = statements({"endset"});
    close("endset");
  }

  void macro(Statement& s) {
    s.kind = SKind::macro;
    s.text = need_name();
    need("(");
    while (!skip(")")) {
      if (!s.targets.empty()) need(",");
      s.targets.push_back(need_name());
      if (skip("=")) s.defaults.push_back(expression());
      else if (!s.defaults.empty()) fail_now("follows a parameter without a default");
    }
    end_block();
    const int outside = std::exchange(loops_, 0);
    s.body = statements({"endmacro"});
    loops_ = outside;
    close("endmacro");
  }

  // ---- expressions -----------------------------------------------------------------------------

  // `a, b` is a tuple where no bracket is needed.
  ExprPtr tuple_or_one(bool with_choice = true) {
    const auto one = [&] { return with_choice ? expression() : either(); };
    ExprPtr first = one();
    if (!sees(",")) return first;
    ExprPtr all = make(Expr::Kind::tuple);
    all->of.push_back(std::move(first));
    while (skip(",")) {
      if (now().kind == Kind::block_end || now().kind == Kind::print_end) break;
      all->of.push_back(one());
    }
    return grown(std::move(all));
  }

  ExprPtr expression() {
    const Deeper deeper(depth_, now().line);
    ExprPtr then = either();
    while (skip_name("if")) {
      ExprPtr e = make(Expr::Kind::choice);
      e->of.push_back(either());
      e->of.push_back(std::move(then));
      e->of.push_back(skip_name("else") ? expression() : nullptr);
      then = grown(std::move(e));
    }
    return then;
  }
  ExprPtr either() {
    ExprPtr a = both();
    while (skip_name("or")) a = join(Expr::Kind::logical, "or", std::move(a), both());
    return a;
  }
  ExprPtr both() {
    ExprPtr a = negation();
    while (skip_name("and")) a = join(Expr::Kind::logical, "and", std::move(a), negation());
    return a;
  }
  ExprPtr negation() {
    if (!sees_name("not") || (ahead().is(Kind::name, "in"))) return comparison();
    const Deeper deeper(depth_, now().line);
    ExprPtr e = make(Expr::Kind::unary, "not");
    take();
    e->of.push_back(negation());
    return grown(std::move(e));
  }

  // The sign of a comparison, taken; empty where there is none.
  std::string comparison_sign() {
    for (const char* sign : {"==", "!=", "<=", ">=", "<", ">"})
      if (skip(sign)) return sign;
    if (skip_name("in")) return "in";
    if (sees_name("not") && ahead().is(Kind::name, "in")) {
      take();
      take();
      return "not in";
    }
    return "";
  }
  ExprPtr comparison() {
    ExprPtr a = sum();
    std::string sign = comparison_sign();
    if (sign.empty()) return a;
    ExprPtr e = make(Expr::Kind::compare);
    e->of.push_back(std::move(a));
    for (; !sign.empty(); sign = comparison_sign()) {
      e->names.push_back(sign);
      e->of.push_back(sum());
    }
    return grown(std::move(e));
  }

  template <class Next>
  ExprPtr chain(std::initializer_list<const char*> signs, Next&& next) {
    ExprPtr a = next();
    for (bool found = true; found;) {
      found = false;
      for (const char* sign : signs)
        if (skip(sign)) {
          a = join(Expr::Kind::binary, sign, std::move(a), next());
          found = true;
        }
    }
    return a;
  }
  ExprPtr sum() {
    return chain({"+", "-"}, [&] {
      return chain({"~"}, [&] {
        return chain({"*", "//", "/", "%"},
                     [&] { return chain({"**"}, [&] { return unary(true); }); });
      });
    });
  }

  ExprPtr unary(bool with_filters) {
    const Deeper deeper(depth_, now().line);
    ExprPtr e;
    if (sees("-") || sees("+")) {
      e = make(Expr::Kind::unary, now().text);
      take();
      e->of.push_back(unary(false));
      e = grown(std::move(e));
    } else {
      e = primary();
    }
    e = postfix(std::move(e));
    return with_filters ? filters(std::move(e)) : std::move(e);
  }

  ExprPtr constant(Value value) {
    ExprPtr e = make(Expr::Kind::constant);
    e->value = std::move(value);
    take();
    return e;
  }
  template <class Number>
  ExprPtr number() {
    Number x{};
    const std::string& text = now().text;
    if (std::from_chars(text.data(), text.data() + text.size(), x).ec != std::errc())
      fail_now("is too large a number");
    return constant(x);
  }

  ExprPtr primary() {
    const Token& token = now();
    if (token.kind == Kind::integer) return number<int64_t>();
    if (token.kind == Kind::real) return number<double>();
    if (token.kind == Kind::text) {
      std::string all = token.text;
      while (ahead().kind == Kind::text) {
        take();
        all += now().text;
      }
      return constant(std::move(all));
    }
    if (token.kind == Kind::name) {
      const std::string& name = token.text;
      if (name == "true" || name == "True") return constant(true);
      if (name == "false" || name == "False") return constant(false);
      if (name == "none" || name == "None") return constant({});
      ExprPtr e = make(Expr::Kind::name, name);
      take();
      return e;
    }
    if (skip("(")) return bracket();
    if (sees("[")) {
      ExprPtr e = make(Expr::Kind::list);
      take();
      items(*e, "]");
      return grown(std::move(e));
    }
    if (sees("{")) return dict();
    fail_now("stands where a value should");
  }

  void items(Expr& e, std::string_view close) {
    while (!skip(close)) {
      if (!e.of.empty()) {
        need(",");
        if (skip(close)) return;
      }
      e.of.push_back(expression());
    }
  }

  ExprPtr bracket() {
    ExprPtr all = make(Expr::Kind::tuple);
    if (skip(")")) return all;
    ExprPtr first = expression();
    if (skip(")")) return first;
    all->of.push_back(std::move(first));
    items(*all, ")");
    return grown(std::move(all));
  }

  ExprPtr dict() {
    ExprPtr e = make(Expr::Kind::dict);
    take();
    while (!skip("}")) {
      if (!e->of.empty()) {
        need(",");
        if (skip("}")) break;
      }
      e->of.push_back(expression());
      need(":");
      e->of.push_back(expression());
    }
    return grown(std::move(e));
  }

  ExprPtr postfix(ExprPtr e) {
    for (;;) {
      if (skip(".")) {
        const bool by_place = now().kind == Kind::integer;
        ExprPtr next = make(by_place ? Expr::Kind::item : Expr::Kind::attribute);
        next->of.push_back(std::move(e));
        if (by_place) next->of.push_back(number<int64_t>());
        else next->text = need_name();
        e = grown(std::move(next));
      } else if (skip("[")) {
        e = subscript(std::move(e));
      } else if (sees("(")) {
        ExprPtr call = make(Expr::Kind::call);
        call->of.push_back(std::move(e));
        call->names.emplace_back();
        arguments(*call);
        e = grown(std::move(call));
      } else {
        return e;
      }
    }
  }

  ExprPtr subscript(ExprPtr object) {
    ExprPtr e = make(Expr::Kind::item);
    e->of.push_back(std::move(object));
    const auto part = [&]() -> ExprPtr { return sees(":") || sees("]") ? nullptr : expression(); };
    e->of.push_back(part());
    while (sees(":") && e->of.size() < 4) {
      take();
      e->kind = Expr::Kind::slice;
      e->of.push_back(part());
    }
    if (e->kind == Expr::Kind::slice) e->of.resize(4);
    else if (!e->of[1]) fail_now("stands where a key should");
    need("]");
    return grown(std::move(e));
  }

  // In brackets, appended to `of` and `names`.
  void arguments(Expr& e) {
    need("(");
    for (bool first = true; !skip(")"); first = false) {
      if (!first) {
        need(",");
        if (skip(")")) return;
      }
      if (sees("*") || sees("**")) fail_now("before an argument is not known here");
      std::string name;
      if (now().kind == Kind::name && ahead().is(Kind::sign, "=")) {
        name = take().text;
        take();
      } else if (!e.names.empty() && !e.names.back().empty()) {
        fail_now("follows an argument by name");
      }
      e.names.push_back(std::move(name));
      e.of.push_back(expression());
    }
  }

  // Filters, tests and calls behind a value.
  ExprPtr filters(ExprPtr e) {
    for (;;) {
      if (skip("|")) {
        ExprPtr filter = make(Expr::Kind::filter);
        filter->text = need_name();
        filter->of.push_back(std::move(e));
        filter->names.emplace_back();
        if (sees("(")) arguments(*filter);
        e = grown(std::move(filter));
      } else if (skip_name("is")) {
        e = test(std::move(e));
      } else if (sees("(")) {
        e = postfix(std::move(e));
      } else {
        return e;
      }
    }
  }

  ExprPtr test(ExprPtr e) {
    const bool negated = skip_name("not");
    ExprPtr test = make(Expr::Kind::test);
    test->text = need_name();
    test->of.push_back(std::move(e));
    test->names.emplace_back();
    const auto is_value = [&] {
      if (now().kind == Kind::name)
        return !sees_name("else") && !sees_name("or") && !sees_name("and") && !sees_name("if") &&
               !sees_name("is") && !sees_name("not") && !sees_name("in");
      return now().kind == Kind::text || now().kind == Kind::integer || now().kind == Kind::real ||
             sees("[") || sees("{");
    };
    if (sees("(")) {
      arguments(*test);
    } else if (is_value()) {
      test->of.push_back(postfix(primary()));
      test->names.emplace_back();
    }
    test = grown(std::move(test));
    if (!negated) return test;
    ExprPtr all = make(Expr::Kind::unary, "not");
    all->of.push_back(std::move(test));
    return grown(std::move(all));
  }

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0, loops_ = 0;
};

}  // namespace

Body parse(std::string_view source) { return Parser(source).whole(); }

}  // namespace moe::jinja
