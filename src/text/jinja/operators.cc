// What lies between two values, as Python has it.
#include <algorithm>
#include <cmath>
#include <functional>
#include <typeinfo>

#include "src/text/jinja/limits.h"
#include "src/text/jinja/nodes.h"

namespace topkv {
namespace {

Value truth(bool value) { return jinja::mk_val<jinja::value_bool>(value); }

[[noreturn]] void refuse(const std::string& sign, const Value& left, const Value& right) {
  fail("it has " + kind_of(left) + " " + sign + " " + kind_of(right));
}

double as_double(const Value& value) {
  return jinja::is_val<jinja::value_float>(value) ? value->as_float()
                                                  : static_cast<double>(value->as_int());
}

Value whole_arithmetic(const std::string& sign, std::int64_t a, std::int64_t b) {
  std::int64_t out = 0;
  bool over = false;
  if (sign == "+") {
    over = __builtin_add_overflow(a, b, &out);
  } else if (sign == "-") {
    over = __builtin_sub_overflow(a, b, &out);
  } else if (sign == "*") {
    over = __builtin_mul_overflow(a, b, &out);
  } else {
    if (b == 0) fail("it divides by zero");
    out = b == -1 ? 0 : a % b;
    if (out != 0 && (out < 0) != (b < 0)) out += b;  // Python's has the sign of the divisor
  }
  if (over) fail("it counts beyond 64 bits");
  return jinja::mk_val<jinja::value_int>(out);
}

Value arithmetic(const std::string& sign, const Value& left, const Value& right) {
  const bool whole =
      !jinja::is_val<jinja::value_float>(left) && !jinja::is_val<jinja::value_float>(right);
  if (whole && sign != "/") return whole_arithmetic(sign, left->as_int(), right->as_int());
  const double a = as_double(left);
  const double b = as_double(right);
  if (sign == "%") fail("it divides a fraction with a remainder, which is not implemented");
  if (sign == "/" && b == 0) fail("it divides by zero");
  const double out = sign == "+" ? a + b : sign == "-" ? a - b : sign == "*" ? a * b : a / b;
  if (!std::isfinite(out) || std::fabs(out) > 1e18) fail("it counts to a number that is too large");
  return jinja::mk_val<jinja::value_float>(out);
}

Value repeated(const std::string& text, std::int64_t times) {
  std::string out;
  if (times > 0 && !text.empty()) {
    std::size_t bytes = 0;
    if (__builtin_mul_overflow(text.size(), static_cast<std::size_t>(times), &bytes))
      bytes = SIZE_MAX;
    Meter::current().take(bytes);
    out.reserve(bytes);
    for (std::int64_t i = 0; i < times; ++i) out += text;
  }
  return text_value(std::move(out));
}

/// Objects have the same entries, in whatever order.
bool same_entries(const Value& a, const Value& b) {
  return std::all_of(a->val_obj.begin(), a->val_obj.end(), [&](const auto& mine) {
    return std::any_of(b->val_obj.begin(), b->val_obj.end(), [&](const auto& other) {
      return same(mine.first, other.first) && same(mine.second, other.second);
    });
  });
}

template <class T>
bool compared(const std::string& sign, const T& a, const T& b) {
  return sign == "<" ? a < b : sign == "<=" ? a <= b : sign == ">" ? a > b : a >= b;
}

/// a ~ b, counted before it is made.
Value joined(const Value& a, const Value& b) {
  std::string out = text_of(a);
  const std::string behind = text_of(b);
  Meter::current().take(out.size() + behind.size());
  return text_value(std::move(out) + behind);
}

}  // namespace

bool contains(const Value& all, const Value& one) {
  if (all->is_undefined()) return false;
  if (jinja::is_val<jinja::value_array>(all)) {
    return std::any_of(all->val_arr.begin(), all->val_arr.end(),
                       [&](const Value& item) { return same(item, one); });
  }
  if (is_text(all) && is_text(one)) {
    return place_of(text_in(one), text_in(all)) != std::string::npos;
  }
  if (!jinja::is_val<jinja::value_object>(all)) refuse("in", one, all);
  go_through(one);
  return all->has_key(one);
}

bool same(const Value& a, const Value& b) {
  Meter::current().step();
  if (a.get() == b.get() && !jinja::is_val<jinja::value_float>(a)) return true;
  if (jinja::is_val<Namespace>(a) || jinja::is_val<Namespace>(b)) return false;
  const jinja::value_t& one = *a;
  const jinja::value_t& other = *b;
  if (jinja::is_val<jinja::value_array>(a) && typeid(one) == typeid(other)) {
    return std::equal(a->val_arr.begin(), a->val_arr.end(), b->val_arr.begin(), b->val_arr.end(),
                      same);
  }
  if (jinja::is_val<jinja::value_object>(a) && jinja::is_val<jinja::value_object>(b)) {
    return a->val_obj.size() == b->val_obj.size() && same_entries(a, b);
  }
  if (is_text(a) && is_text(b)) {
    return a->val_str.length() == b->val_str.length() && text_in(a) == text_in(b);
  }
  return one == other;
}

bool ordered(const std::string& sign, const Value& a, const Value& b) {
  if (is_number(a) && is_number(b)) return compared(sign, as_double(a), as_double(b));
  if (is_text(a) && is_text(b)) {  // bytes of UTF-8 lie as its characters do
    return compared(sign, text_in(a), text_in(b));
  }
  refuse(sign, a, b);
}

Value Operation::execute_impl(jinja::context& context) const {
  Meter& meter = Meter::current();
  meter.step();
  const Value a = left->execute(context);
  const Value b = right->execute(context);
  const std::string& sign = op.value;
  if (sign == "==" || sign == "!=") {
    return truth(same(a, b) == (sign == "=="));
  }
  if (sign == "in" || sign == "not in") return truth(contains(b, a) == (sign == "in"));
  if (sign == "~" || (sign == "+" && is_text(a) && is_text(b))) return joined(a, b);
  if (sign.front() == '<' || sign.front() == '>') return truth(ordered(sign, a, b));
  if (is_number(a) && is_number(b)) return arithmetic(sign, a, b);
  const auto whole = [](const Value& value) {
    return is_number(value) && !jinja::is_val<jinja::value_float>(value);
  };
  if (sign == "*" && is_text(a) && whole(b)) return repeated(text_in(a), b->as_int());
  if (sign == "*" && whole(a) && is_text(b)) return repeated(text_in(b), a->as_int());
  const bool lists = jinja::is_val<jinja::value_array>(a) && jinja::is_val<jinja::value_array>(b);
  if (sign == "+" && lists) {
    std::vector<Value> items = a->val_arr;
    items.insert(items.end(), b->val_arr.begin(), b->val_arr.end());
    return counted(jinja::mk_val<jinja::value_array>(std::move(items)));
  }
  refuse(sign, a, b);
}

}  // namespace topkv
