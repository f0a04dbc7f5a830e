// SPDX-License-Identifier: MIT
// An answer as it grows: a small part of Markdown, made of nodes and never of markup. Fenced code, lists, tables,
// headings, quotes; `code`, **strong**, *emphasis*. Links and HTML stay the text that they are. Law: a line that has
// ended is made once; only the line that grows is made again, so a frame costs what came since the last one, whatever
// the answer has. No block gets longer than BLOCK_LINES lines or LINE characters: layout is bounded, too.
import {make} from "./dom.js";

const LINE = 4000, BLOCK_LINES = 100;

export class TextView {
  constructor(root) {
    this.root = root;
    this.clear();
  }

  clear() {
    this.root.replaceChildren();
    this.shown = 0;    // characters of the text that are here
    this.tail = "";    // the line that grows
    this.block = null; // {kind, node, lines, ...}: what the next line may go on with
    this.mark = null;  // what was here before the line that grows
  }

  // The text as a whole; what was shown before is its beginning, or all is made anew.
  update(text) {
    if (text.length < this.shown) this.clear();
    if (text.length === this.shown) return;
    this.undoTail();
    const lines = (this.tail + text.slice(this.shown)).split("\n");
    this.shown = text.length;
    this.tail = lines.pop();
    for (const line of lines) this.addLong(line);
    this.tail = this.cutLong(this.tail);
    this.mark = {
      block: this.block && {...this.block},
      root: this.root.lastChild,
      inner: this.block && this.block.node.lastChild
    };
    if (this.tail !== "") this.addLine(this.tail);
  }

  undoTail() {
    if (this.mark === null) return;
    const {block, root, inner} = this.mark;
    while (this.root.lastChild !== root) this.root.lastChild.remove();
    if (block !== null)
      while (block.node.lastChild !== inner) block.node.lastChild.remove();
    this.block = block;
    this.mark = null;
  }

  addLong(line) { this.addLine(this.cutLong(line)); }

  // Adds what is over the longest line, cut at a blank where there is one; gives the rest.
  cutLong(line) {
    let from = 0;
    while (line.length - from > LINE) {
      const blank = line.lastIndexOf(" ", from + LINE);
      const end = blank > from + LINE / 2 ? blank + 1 : from + LINE;
      this.addLine(line.slice(from, end));
      if (this.block !== null && this.block.kind !== "code") this.block = null;
      from = end;
    }
    return line.slice(from);
  }

  addLine(line) {
    if (this.block !== null && this.block.kind === "code") {
      this.addCode(line);
      return;
    }
    const fence = /^\s{0,3}(```+|~~~+)\s*([\w+#.-]*)/.exec(line);
    if (fence) {
      this.openCode(fence[1], fence[2]);
      return;
    }
    if (line.trim() === "") {
      this.block = null;
      return;
    }
    const heading = /^(#{1,6})\s+(.+)$/.exec(line);
    if (heading) {
      this.root.append(this.inline(make(`h${Math.min(6, heading[1].length + 2)}`), heading[2]));
      this.block = null;
      return;
    }
    const item = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/.exec(line);
    if (item)
      this.addItem(item);
    else if (/^\s*\|.*\|\s*$/.test(line))
      this.addRow(line.trim());
    else if (/^\s*>\s?/.test(line))
      this.addText("quote", "blockquote", line.replace(/^\s*>\s?/, ""));
    else
      this.addText("text", "p", line);
  }

  open(kind, node, more = {}) {
    this.root.append(node);
    this.block = {kind, node, lines: 0, ...more};
  }

  openCode(fence, language) {
    const node = make("code");
    const label = language === "" ? "Code" : `Code in ${language}`;
    this.root.append(make("pre", {tabindex: "0", role: "region", "aria-label": label}, node));
    this.block = {kind: "code", node, lines: 0, fence, language};
  }

  addCode(line) {
    const {fence, language} = this.block;
    if (line.trimStart().startsWith(fence)) {
      this.block = null;
      return;
    }
    if (this.block.lines >= BLOCK_LINES) {
      this.openCode(fence, language);
      this.block.node.parentNode.classList.add("more"); // goes on without a gap
    }
    this.block.node.append(make("span", {}, `${line}\n`));
    this.block.lines += 1;
  }

  addText(kind, tag, line) {
    if (this.block === null || this.block.kind !== kind || this.block.lines >= BLOCK_LINES)
      this.open(kind, make(tag, {dir: "auto"}));
    this.block.node.append(this.inline(make("span", {class: "line"}), line));
    this.block.lines += 1;
  }

  addItem([, indent, mark, words]) {
    const ordered = /\d/.test(mark);
    const kind = ordered ? "ol" : "ul";
    if (this.block === null || this.block.kind !== kind || this.block.lines >= BLOCK_LINES) {
      this.open(kind, make(kind, ordered ? {start: parseInt(mark, 10)} : {}));
    }
    const depth = Math.min(3, Math.floor(indent.length / 2));
    this.block.node.append(this.inline(make("li", {dir: "auto", class: depth > 0 ? `in${depth}` : undefined}), words));
    this.block.lines += 1;
  }

  addRow(line) {
    if (this.block === null || this.block.kind !== "table" || this.block.lines >= BLOCK_LINES) {
      this.open("table", make("table"));
      this.block.node.append(make("tbody"));
      this.block.node = this.block.node.firstChild;
    }
    const cells = line.slice(1, -1).split("|");
    this.block.lines += 1;
    if (cells.every((cell) => /^\s*:?-+:?\s*$/.test(cell))) return; // the line under a head
    this.block.node.append(make("tr", {}, ...cells.map((cell) => this.inline(make("td", {dir: "auto"}), cell.trim()))));
  }

  // The words of a line with emphasis, as children of node. A mark that nothing closes is text.
  inline(node, words) {
    const pattern = /`([^`]+)`|\*\*([^*]+)\*\*|\*([^*\s][^*]*)\*/g;
    let from = 0;
    for (let found = pattern.exec(words); found !== null; found = pattern.exec(words)) {
      node.append(words.slice(from, found.index));
      const [, code, strong, emphasis] = found;
      if (code !== undefined)
        node.append(make("code", {}, code));
      else if (strong !== undefined)
        node.append(make("strong", {}, strong));
      else
        node.append(make("em", {}, emphasis));
      from = pattern.lastIndex;
    }
    node.append(words.slice(from));
    return node;
  }
}
