// Comfort on top of a page that reads without it: values in one quick tip, layers to choose from, tokens recoloured by layer.
(() => {
  'use strict';
  const all = (selector, from = document) => [...from.querySelectorAll(selector)];
  const make = (tag, properties = {}, ...children) => {
    const element = Object.assign(document.createElement(tag), properties);
    element.append(...children);
    return element;
  };

  // The tip. Titles become data-tip on the first visit, so that the browser does not show its own as well.
  const tip = document.getElementById('tip');
  const show = (text, x, y) => {
    tip.textContent = text;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = Math.max(8, Math.min(x + 14, innerWidth - box.width - 8)) + 'px';
    tip.style.top = (y + 22 + box.height > innerHeight ? Math.max(8, y - box.height - 14) : y + 18) + 'px';
  };
  const hide = () => { tip.hidden = true; };

  const mapText = (map, event) => {
    const [rowWord, ...rows] = map.dataset.rows.split('|'), [colWord, ...cols] = map.dataset.cols.split('|');
    const box = map.getBoundingClientRect();
    const r = Math.min(rows.length - 1, Math.max(0, Math.floor((event.clientY - box.top) / box.height * rows.length)));
    const c = Math.min(cols.length - 1, Math.max(0, Math.floor((event.clientX - box.left) / box.width * cols.length)));
    const code = map.dataset.v[r * cols.length + c];
    const place = (rowWord + ' ' + rows[r]).trim() + ', ' + (colWord + ' ' + cols[c]).trim();
    if (code === '~') return place + ': no value';
    const ratio = Number(map.dataset.limit) ** ((code.charCodeAt(0) - 65) / 24 - 1), even = Number(map.dataset.even);
    const near = code === 'A' ? 'at most ' : code === 'q' ? 'at least ' : 'about ';
    return place + ': ' + near + (100 * ratio * even).toPrecision(2) + '%, ' + ratio.toFixed(1) + '× the even share';
  };

  const tokenText = token => {
    const box = token.parentElement, index = [...box.children].indexOf(token);
    const {layers, choices, nats} = sample(box);
    const mine = choices[layer][index];
    const whole = token.firstElementChild === null || token.textContent !== '·';
    const lines = [(whole ? '“' + token.textContent.replace(/↵\n/g, '↵').replace(/^ | $/g, '␣') + '”' : 'a part of a character') + (index ? ', ' + nats[index] + ' nats' : ', the first')];
    lines.push('layer ' + layers[layer] + ': ' + (mine.length ? mine.map(([e, w]) => 'expert ' + e + ' at ' + w.toFixed(2)).join(', ') : 'sent to no expert'));
    return lines.join('\n');
  };

  const tipOf = (element, event) => {
    if (element.dataset.v) return mapText(element, event);
    if (element.classList.contains('t')) return tokenText(element);
    if (element.dataset.tip === undefined) {
      const title = element.querySelector(':scope > title');
      element.dataset.tip = title ? title.textContent : element.title;
      if (title) title.remove();
      else element.removeAttribute('title');
    }
    return element.dataset.tip;
  };
  const held = target => target.closest && target.closest('.t, [data-v], [data-tip], [title], .cl, .hv, g:has(> title)');
  const react = event => {
    const element = held(event.target);
    if (element) show(tipOf(element, event), event.clientX, event.clientY);
    else hide();
  };
  addEventListener('pointermove', react);
  addEventListener('pointerdown', react);
  addEventListener('pointerleave', hide);
  addEventListener('scroll', hide, {passive: true});
  addEventListener('keydown', event => { if (event.key === 'Escape') hide(); });

  // Buttons for few, a list for many. pick(i) is called on every change.
  const chooser = (word, names, start, pick) => {
    const row = make('div', {className: 'choose'});
    if (names.length <= 8) {
      names.forEach((name, i) => {
        const button = make('button', {type: 'button', textContent: name});
        button.setAttribute('aria-pressed', i === start);
        button.onclick = () => {
          all('button', row).forEach(other => other.setAttribute('aria-pressed', other === button));
          pick(i);
        };
        row.append(button);
      });
    } else {
      const list = make('select', {onchange: () => pick(list.selectedIndex)}, ...names.map(name => make('option', {textContent: name})));
      list.selectedIndex = start;
      row.append(make('label', {}, word + ' ', list));
    }
    return row;
  };
  for (const pick of all('.pick')) {
    const sections = all(':scope > section', pick);
    if (sections.length < 2) continue;
    const choose = i => sections.forEach((section, j) => { section.hidden = i !== j; });
    pick.prepend(chooser('show', sections.map(section => section.dataset.name), 0, choose));
    pick.classList.add('ready');
    choose(0);
  }

  // Sample texts: their choices are unpacked when first needed.
  let layer = Number(document.querySelector('.texts')?.dataset.start || 0);
  const samples = new Map();
  const sample = box => {
    if (!samples.has(box)) {
      const choices = box.dataset.experts.split('|').map(tokens => tokens.split(';').map(
        token => token ? token.split(',').map(pair => pair.split(':').map(Number)).map(([e, w]) => [e, w / 1000]) : []));
      samples.set(box, {choices, nats: box.dataset.nats.split(' '), layers: box.closest('.texts').dataset.layers.split(' ')});
    }
    return samples.get(box);
  };
  const recolour = () => {
    for (const box of all('.tokens')) {
      const mine = sample(box).choices[layer];
      [...box.children].forEach((token, i) => {
        const sum = mine[i].reduce((all, [, w]) => all + Math.abs(w), 0);
        token.className = mine[i].length ? 't x' + mine[i][0][0] + ' w' + Math.round(4 * (sum > 0 ? Math.abs(mine[i][0][1]) / sum : 1)) : 't none';
      });
    }
  };
  for (const texts of all('.texts')) {
    const names = texts.dataset.layers.split(' ');
    const note = texts.parentElement.querySelector('.layer-note');
    if (names.length > 1) {
      texts.parentElement.prepend(chooser('layer', names.map(name => 'layer ' + name), layer, i => {
        layer = i;
        note.firstElementChild.textContent = names[i];
        recolour();
      }));
    }
    // Over an expert of the legend, the tokens that chose it in any place stay lit.
    for (const key of all('.key', texts.parentElement)) {
      key.tabIndex = 0;
      key.setAttribute('role', 'button');
      const expert = Number(key.dataset.e);
      const light = on => {
        texts.classList.toggle('dim', on);
        key.classList.toggle('on', on);
        for (const box of all('.tokens', texts)) {
          const mine = sample(box).choices[layer];
          [...box.children].forEach((token, i) => token.classList.toggle('lit', on && mine[i].some(([e]) => e === expert)));
        }
      };
      key.onpointerenter = key.onfocus = () => light(true);
      key.onpointerleave = key.onblur = () => light(false);
    }
  }
  // Arrow keys walk over the tokens of the text in focus.
  for (const box of all('.tokens')) {
    let at = -1;
    box.onkeydown = event => {
      const step = {ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1}[event.key];
      if (!step) return;
      event.preventDefault();
      if (at >= 0) box.children[at].classList.remove('at');
      at = Math.max(0, Math.min(box.children.length - 1, at + step));
      const token = box.children[at], place = token.getBoundingClientRect();
      token.classList.add('at');
      show(tokenText(token), place.left, place.bottom - 8);
    };
    box.onblur = () => { if (at >= 0) box.children[at].classList.remove('at'); at = -1; hide(); };
  }

  const theme = document.getElementById('theme');
  const system = matchMedia('(prefers-color-scheme: dark)'), root = document.documentElement;
  const other = () => (root.dataset.theme || (system.matches ? 'dark' : 'light')) === 'dark' ? 'light' : 'dark';
  const name = () => { theme.textContent = other() === 'dark' ? 'Dark' : 'Light'; };
  theme.hidden = false;
  theme.onclick = () => { root.dataset.theme = other(); name(); };
  system.onchange = name;
  name();
})();
