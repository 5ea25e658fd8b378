// What eslint checks in the page's JavaScript. Types and undefined names are tsc's part.

const SETS_HTML = ["innerHTML", "outerHTML", "insertAdjacentHTML", "srcdoc"];

/** Only markdown.js, which has the page's one policy, may turn a text into HTML. */
const noHtml = {
  "no-restricted-syntax": [
    "error",
    ...SETS_HTML.map((name) => ({
      selector: `MemberExpression[property.name="${name}"]`,
      message: "Build elements with h(), or use MarkdownText.",
    })),
  ],
};

export default [
  { linterOptions: { reportUnusedDisableDirectives: "error" } },
  {
    files: ["**/*.js"],
    languageOptions: { ecmaVersion: 2024, sourceType: "module" },
    rules: {
      ...noHtml,
      "array-callback-return": "error",
      complexity: ["error", 20],
      "consistent-return": "error",
      eqeqeq: "error",
      "for-direction": "error",
      "getter-return": "error",
      "max-lines-per-function": ["error", { max: 70, skipBlankLines: true, skipComments: true }],
      "no-case-declarations": "error",
      "no-cond-assign": "error",
      "no-const-assign": "error",
      "no-constant-condition": "error",
      "no-control-regex": "error",
      "no-dupe-class-members": "error",
      "no-dupe-else-if": "error",
      "no-dupe-keys": "error",
      "no-duplicate-imports": "error",
      "no-else-return": "error",
      "no-empty": "error",
      "no-eval": "error",
      "no-fallthrough": "error",
      "no-implied-eval": "error",
      "no-irregular-whitespace": "error",
      "no-lonely-if": "error",
      "no-loss-of-precision": "error",
      "no-new-func": "error",
      "no-return-assign": ["error", "except-parens"],
      "no-self-assign": "error",
      "no-self-compare": "error",
      "no-shadow": "error",
      "no-sparse-arrays": "error",
      "no-unneeded-ternary": "error",
      "no-unreachable": "error",
      "no-unsafe-finally": "error",
      "no-unused-expressions": "error",
      "no-unused-vars": ["error", { argsIgnorePattern: "^_" }],
      "no-use-before-define": ["error", { functions: false, classes: false, variables: false }],
      "no-useless-concat": "error",
      "no-useless-escape": "error",
      "no-useless-rename": "error",
      "no-useless-return": "error",
      "no-var": "error",
      "object-shorthand": "error",
      "prefer-const": "error",
      "prefer-template": "error",
      "use-isnan": "error",
      "valid-typeof": "error",
    },
  },
  { files: ["**/markdown.js"], rules: { "no-restricted-syntax": "off" } },
];
