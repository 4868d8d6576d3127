// Reads JSON without changing its numbers: an integer that a double cannot hold, such as the id of an
// order, is kept as it was written, where the browser can do that. `JSON.stringify` writes it back so.
// Never touches the page.

/** As `JSON.parse`, but for large integers. */
export const parse = (text) => JSON.parse(text, (_, value, context) => (isAltered(value, context?.source) ? JSON.rawJSON(context.source) : value));

/** Whether a value is an integer that was kept as it was written. */
export const isExact = (value) => JSON.isRawJSON?.(value) ?? false;

function isAltered(value, source) {
  return typeof value === "number" && !Number.isSafeInteger(value) && /^-?\d+$/.test(source ?? "") && JSON.rawJSON !== undefined;
}
