// A chat template as a tree.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/value.h"

namespace moe::jinja {

struct Expr {
  enum class Kind {
    constant,   // value
    name,       // text
    attribute,  // [object], text
    item,       // [object, key]
    slice,      // [object, from, to, step], any but the object null
    list,
    tuple,
    dict,     // [key, value, ...]
    call,     // [callee, arguments...], names
    filter,   // [argument...], text, names
    test,     // [argument...], text, names
    unary,    // [x], text: "-", "+" or "not"
    binary,   // [a, b], text
    logical,  // [a, b], text: "and" or "or"
    compare,  // [a, b, c, ...], names: the signs between them
    choice,   // [condition, then, otherwise or null]
  };
  Kind kind;
  int line;
  std::string text;
  Value value;
  std::vector<std::unique_ptr<Expr>> of;
  // Of arguments: one for each of `of`, empty where it is by place; the first of a call, filter or
  // test is what it is applied to.
  std::vector<std::string> names;
  int height = 0;  // bounded, so that walking the tree, and letting go of it, is
};
using ExprPtr = std::unique_ptr<Expr>;

struct Statement;
using Body = std::vector<Statement>;

struct Statement {
  enum class Kind {
    data,    // text
    print,   // expr
    choose,  // branches in turn; one without a condition is else
    loop,    // targets, expr, filter, body; branches[0]: where there was nothing
    set,     // targets, field, expr; or body where expr is null, through `filter`
    macro,   // text, targets and defaults, body
    scope,   // body: {% generation %}
    leave,   // break
    next,    // continue
  };
  struct Branch {
    ExprPtr condition;
    Body body;
  };
  Kind kind;
  int line;
  std::string text;
  ExprPtr expr, filter;
  std::vector<std::string> targets;
  std::string field;              // of a namespace
  std::vector<ExprPtr> defaults;  // of the last parameters
  Body body;
  std::vector<Branch> branches;
};

// Fails, naming the line, where the text is no template or uses what this interpreter does not
// know.
Body parse(std::string_view source);

}  // namespace moe::jinja
