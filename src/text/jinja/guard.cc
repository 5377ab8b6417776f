// Goes through what the engine parsed and puts topkv's nodes in place of its own.
#include <algorithm>
#include <vector>

#include "src/text/jinja/limits.h"
#include "src/text/jinja/nodes.h"

namespace topkv {
namespace {

using jinja::statement_ptr;

class Guard {
 public:
  explicit Guard(const std::string& source) {
    for (std::size_t i = 0; i < source.size(); ++i)
      if (source[i] == '\n') line_ends_.push_back(i);
  }

  void body(jinja::statements& items) {
    std::erase_if(items, [](const statement_ptr& item) {
      return is<jinja::comment_statement>(item) || is<jinja::noop_statement>(item);
    });
    for (statement_ptr& item : items) {
      if (is<jinja::break_statement>(item) || is<jinja::continue_statement>(item)) {
        put<Leave>(item, is<jinja::break_statement>(item));
        continue;
      }
      auto made = std::make_unique<Item>();
      made->pos = line(item->pos);
      made->prints = is<jinja::expression>(item);
      if (made->prints) {
        expression(item);
      } else {
        statement(item, made->pos);
      }
      made->inner = std::move(item);
      item = std::move(made);
    }
  }

 private:
  template <class Node>
  static bool is(const statement_ptr& node) {
    return dynamic_cast<const Node*>(node.get()) != nullptr;
  }

  /// line_of(), in a time that does not grow with the template, as each statement asks.
  std::size_t line(std::size_t position) const {
    const auto next = std::lower_bound(line_ends_.begin(), line_ends_.end(), position);
    return static_cast<std::size_t>(next - line_ends_.begin()) + 1;
  }

  template <class Made, class... Arguments>
  static void put(statement_ptr& node, Arguments&&... arguments) {
    auto made = std::make_unique<Made>(std::forward<Arguments>(arguments)...);
    made->pos = node->pos;
    node = std::move(made);
  }

  void statement(statement_ptr& node, std::size_t at) {
    if (auto* choice = dynamic_cast<jinja::if_statement*>(node.get())) {
      expression(choice->test);
      body(choice->body);
      body(choice->alternate);
      put<If>(node, std::move(choice->test), std::move(choice->body), std::move(choice->alternate));
    } else if (auto* loop = dynamic_cast<jinja::for_statement*>(node.get())) {
      iterable(loop->iterable);
      inner_body(loop->body);
      body(loop->default_block);
      put<For>(node, std::move(loop->loopvar), std::move(loop->iterable), std::move(loop->body),
               std::move(loop->default_block));
    } else if (auto* set = dynamic_cast<jinja::set_statement*>(node.get())) {
      if (set->val) expression(set->val);
      // What is set by its name stays as it is.
      if (auto* member = dynamic_cast<jinja::member_expression*>(set->assignee.get())) {
        expression(member->object);
      }
      body(set->body);
      put<Set>(node, std::move(set->assignee), std::move(set->val), std::move(set->body));
    } else if (auto* macro = dynamic_cast<jinja::macro_statement*>(node.get())) {
      arguments(macro->args);
      inner_body(macro->body);
      put<Macro>(node, scopes_ == 0, std::move(macro->name), std::move(macro->args),
                 std::move(macro->body));
    } else {
      throw TemplateFailure{"it has a statement call or filter, which is not implemented",
                            static_cast<std::int64_t>(at)};
    }
  }

  /// One that has names of its own.
  void inner_body(jinja::statements& items) {
    ++scopes_;
    body(items);
    --scopes_;
  }

  void iterable(statement_ptr& node) {
    if (auto* select = dynamic_cast<jinja::select_expression*>(node.get())) {
      expression(select->lhs);
      expression(select->test);
    } else {
      expression(node);
    }
  }

  void arguments(jinja::statements& nodes) {
    for (statement_ptr& node : nodes) {
      if (auto* named = dynamic_cast<jinja::keyword_argument_expression*>(node.get())) {
        expression(named->val);
      } else {
        expression(node);
      }
    }
  }

  /// A filter or a test is named, and has arguments at most.
  void named(statement_ptr& node) {
    if (auto* call = dynamic_cast<jinja::call_expression*>(node.get())) arguments(call->args);
  }

  void literal(statement_ptr& node, jinja::statements& items) {
    for (statement_ptr& item : items) expression(item);
    literal(node);
  }

  static void literal(statement_ptr& node) { wrap<Literal>(node); }

  template <class Made>
  static void wrap(statement_ptr& node) {
    auto made = std::make_unique<Made>();
    made->pos = node->pos;
    made->inner = std::move(node);
    node = std::move(made);
  }

  void expression(statement_ptr& node) {
    if (!node) return;
    if (auto* list = dynamic_cast<jinja::array_literal*>(node.get())) {
      literal(node, list->val);
    } else if (auto* tuple = dynamic_cast<jinja::tuple_literal*>(node.get())) {
      literal(node, tuple->val);
    } else if (auto* object = dynamic_cast<jinja::object_literal*>(node.get())) {
      for (auto& [key, value] : object->val) {
        expression(key);
        expression(value);
      }
      put<Object>(node, std::move(object->val));
      literal(node);
    } else if (auto* two = dynamic_cast<jinja::binary_expression*>(node.get())) {
      expression(two->left);
      expression(two->right);
      if (two->op.value == "and" || two->op.value == "or") {
        wrap<Counting>(node);
      } else {
        put<Operation>(node, two->op, std::move(two->left), std::move(two->right));
      }
    } else if (auto* filter = dynamic_cast<jinja::filter_expression*>(node.get())) {
      expression(filter->operand);
      named(filter->filter);
      put<Filter>(node, std::move(filter->operand), std::move(filter->filter));
    } else if (auto* test = dynamic_cast<jinja::test_expression*>(node.get())) {
      expression(test->operand);
      named(test->test);
      const bool negate = test->negate;
      put<Test>(node, std::move(test->operand), negate, std::move(test->test));
    } else if (auto* member = dynamic_cast<jinja::member_expression*>(node.get())) {
      expression(member->object);
      if (auto* slice = dynamic_cast<jinja::slice_expression*>(member->property.get())) {
        expression(slice->start_expr);
        expression(slice->stop_expr);
        expression(slice->step_expr);
      } else if (member->computed) {
        expression(member->property);
      }
      const bool computed = member->computed;
      put<Member>(node, std::move(member->object), std::move(member->property), computed);
    } else if (auto* call = dynamic_cast<jinja::call_expression*>(node.get())) {
      expression(call->callee);
      arguments(call->args);
      put<Call>(node, std::move(call->callee), std::move(call->args));
    } else if (auto* unary = dynamic_cast<jinja::unary_expression*>(node.get())) {
      expression(unary->argument);
      wrap<Counting>(node);
    } else if (auto* choice = dynamic_cast<jinja::ternary_expression*>(node.get())) {
      expression(choice->condition);
      expression(choice->true_expr);
      expression(choice->false_expr);
      wrap<Counting>(node);
    } else if (auto* select = dynamic_cast<jinja::select_expression*>(node.get())) {
      expression(select->lhs);
      expression(select->test);
      wrap<Counting>(node);
    } else if (auto* name = dynamic_cast<jinja::identifier*>(node.get())) {
      put<Name>(node, std::move(name->val));
    } else {
      constant(node);
    }
  }

  static void constant(statement_ptr& node) {
    auto made = std::make_unique<Constant>();
    made->pos = node->pos;
    if (const auto* text = dynamic_cast<const jinja::string_literal*>(node.get())) {
      made->value = jinja::mk_val<jinja::value_string>(text->val);
    } else if (const auto* whole = dynamic_cast<const jinja::integer_literal*>(node.get())) {
      made->value = jinja::mk_val<jinja::value_int>(whole->val);
    } else if (const auto* number = dynamic_cast<const jinja::float_literal*>(node.get())) {
      made->value = fraction_value(number->val);
    } else {
      return;  // what the engine refuses to evaluate
    }
    node = std::move(made);
  }

  std::vector<std::size_t> line_ends_;  // where the source has them
  std::int64_t scopes_ = 0;             // that the statement is in, beside the template's
};

}  // namespace

void guard(jinja::program& program, const std::string& source) { Guard(source).body(program.body); }

}  // namespace topkv
